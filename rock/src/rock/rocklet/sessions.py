"""Bash sessions: state (variables, folder, functions) lives on between commands.

The shell reads from a terminal of its own, so that Ctrl-C works, while output goes to a file: programs see no
terminal, nothing is echoed, and no reader has to keep up. Each command is a file that the shell sources; its exit
status comes back over a separate pipe, written when the shell is ready for the next command.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import shutil
import termios
import time
import uuid
from pathlib import Path

from rock.rocklet.commands import MAX_STREAM_BYTES, BackgroundCommand, identity, prefer_to_kill
from rock.rocklet.errors import NonZeroExit, RockletError, SessionEnded, SessionExists, SessionMissing, TimeLimit
from rock.rocklet.models import DEFAULT_TIMEOUT_SECONDS, BashAction, BashObservation, CreateSession
from rock.runtime.processes import MARK, kill_family

_START_SECONDS = 20.0
_REPORT = "__rocklet_report"  # a function of the session's shell
_AFTER_INTERRUPT_SECONDS = 2.0
_POLL_SECONDS = 0.05


class BashSession:
    def __init__(self, request: CreateSession, folder: Path) -> None:
        self.name = request.session
        self.request = request
        self.folder = folder
        self.mark = uuid.uuid4().hex[:12]
        self.lock = asyncio.Lock()
        self.process: asyncio.subprocess.Process | None = None
        self._terminal = -1
        self._status_read = -1
        self._statuses: asyncio.Queue[int] = asyncio.Queue()
        self._partial = b""
        self._number = 0
        self._output = folder / "output"

    async def start(self) -> str:
        """Starts the shell and sources the start-up files. Returns what that printed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._terminal, slave = pty.openpty()
        settings = termios.tcgetattr(slave)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, settings)
        self._status_read, status_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(status_write, True)
        output = os.open(self._output, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        env = {
            "TERM": "dumb", "PS1": "", "PS2": "", "HISTFILE": "", "BASH_SILENCE_DEPRECATION_WARNING": "1",
            **(self.request.env or {}), MARK: self.mark,
        }  # fmt: skip
        try:
            if self.request.remote_user:
                self.folder.chmod(0o755)
            self.process = await asyncio.create_subprocess_exec(
                "bash", "--noprofile", "--norc", "--noediting", "-i",
                stdin=slave, stdout=output, stderr=output, pass_fds=(status_write,), cwd=self.request.cwd or None,
                preexec_fn=_take_terminal, **identity(self.request.remote_user, env),
            )  # fmt: skip
        except (OSError, ValueError) as error:
            self._close_files()
            raise RockletError(f"session {self.name!r} did not start: {error}") from error
        finally:
            for fd in (slave, status_write, output):
                os.close(fd)
        prefer_to_kill(self.process.pid)
        asyncio.get_running_loop().add_reader(self._status_read, self._on_status)
        # No history, no job control messages; the status goes out before each prompt, also after a command that changes the prompt.
        report = f'PROMPT_COMMAND=\'printf "%s\\n" "$?" >&{status_write}\'; PS1=; PS2=; return "$1"'
        prompt = f"set +m +o history; {_REPORT}() {{ {report}; }}; readonly -f {_REPORT}; {_REPORT} 0"
        sources = "".join(f" . {_quoted(path)};" for path in self.request.startup_source)
        await self._type(f"{prompt};{sources} true\n")
        await self._status(_START_SECONDS + self.request.startup_timeout)
        text = self._take_output()[0]
        # what an interactive shell says about missing job control is not the user's business
        return "\n".join(line for line in text.splitlines() if "job control" not in line)

    async def run(self, action: BashAction) -> BashObservation:
        """Runs one command line.

        Raises:
            SessionEnded: the shell is gone (before or by this command).
            TimeLimit: the command did not end in time; it was interrupted, then killed. The session lives on.
            NonZeroExit: the command failed and `action.check` is "raise".
        """
        async with self.lock:
            self._assert_alive()
            timeout = action.timeout or DEFAULT_TIMEOUT_SECONDS
            if action.is_interactive_command or action.is_interactive_quit:
                return await self._interact(action, timeout)
            self._forget_old_statuses()
            self._number += 1
            script = self.folder / f"command-{self._number}"
            script.write_text(action.command + "\n")
            if self.request.remote_user:
                script.chmod(0o644)
            start = self._size()
            if start and not self._other_writers():
                os.truncate(self._output, 0)
                start = 0
            await self._type(f" . {script}; {_REPORT} $?\n")
            try:
                code = await self._status(timeout, action.expect, start)
            except TimeLimit as error:
                await self._back_to_prompt()
                text, _ = self._take_output(start)
                message = f"session {self.name!r}: command ran longer than {timeout:g} s and was stopped"
                raise TimeLimit(message, output=text) from error
            except SessionEnded as error:
                error.extra["output"] = self._take_output(start)[0]
                raise
            finally:
                script.unlink(missing_ok=True)
            text, file = self._take_output(start)
            if code is None:
                found = next((word for word in action.expect if word in text), "")
                return BashObservation(output=text, exit_code=None, expect_string=found, output_file=file)
            if code != 0 and action.check == "raise":
                reason = action.error_msg or f"command ended with exit code {code}"
                raise NonZeroExit(reason, exit_code=code, output=text)
            return BashObservation(output=text, exit_code=code, output_file=file)

    async def _interact(self, action: BashAction, timeout: float) -> BashObservation:
        start = self._size()
        self._forget_old_statuses()
        await self._type(action.command + "\n")
        code = await self._status(timeout, action.expect, start)
        text, file = self._take_output(start)
        found = next((word for word in action.expect if word in text), "")
        return BashObservation(output=text, exit_code=code, expect_string=found, output_file=file)

    async def start_background(self, command: str, folder: Path, output: str | None) -> BackgroundCommand:
        """Starts a command in a subshell that has the session's folder, variables and functions.

        Args:
            folder: made for the job's files.
            output: file for both streams; None: one in `folder`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        target = Path(output) if output else folder / "output"
        target.parent.mkdir(parents=True, exist_ok=True)
        script, status, pid_file = folder / "command", folder / "status", folder / "pid"
        script.write_text(command + "\n")
        if self.request.remote_user:
            folder.chmod(0o777)
        text = (
            f"export {MARK}={folder.name}; {{ ( . {_quoted(str(script))} ) </dev/null >>{_quoted(str(target))} 2>&1; "
            f"echo $? >{_quoted(str(status))}; }} & echo $! >{_quoted(str(pid_file))}; export {MARK}={self.mark}"
        )
        started = await self.run(BashAction(command=text, session=self.name, timeout=30, check="silent"))
        if started.exit_code != 0:
            raise RockletError(f"session {self.name!r} could not start the command: {started.output}")
        pid = int(pid_file.read_text())

        async def wait() -> int:
            while True:
                gone = not Path(f"/proc/{pid}").exists()
                text = status.read_text() if status.exists() else ""
                if text.endswith("\n"):
                    return int(text)
                if gone:
                    return -9
                await asyncio.sleep(_POLL_SECONDS)

        return BackgroundCommand(folder.name, pid, folder, target, wait)

    async def interrupt(self, grace: float = _AFTER_INTERRUPT_SECONDS) -> None:
        """Ctrl-C for what runs now; what ignores it for `grace` seconds is killed."""
        self._assert_alive()
        if not self.lock.locked():
            return
        os.write(self._terminal, b"\x03")
        end = time.monotonic() + grace
        while self.lock.locked() and time.monotonic() < end:
            await asyncio.sleep(_POLL_SECONDS)
        if self.lock.locked() and self.process is not None:
            await asyncio.to_thread(kill_family, self.process.pid, itself=False)

    async def close(self) -> None:
        """Kills the shell with all that it started."""
        if self.process is not None:
            await asyncio.to_thread(kill_family, self.process.pid, self.mark)
            await self.process.wait()
        self._close_files()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _assert_alive(self) -> None:
        if self.process is None or self.process.returncode is not None:
            code = None if self.process is None else self.process.returncode
            raise SessionEnded(f"session {self.name!r} has ended (shell exit code {code}); create it again")

    async def _type(self, text: str) -> None:
        try:
            await asyncio.to_thread(os.write, self._terminal, text.encode())
        except OSError as error:
            raise SessionEnded(f"session {self.name!r} has no terminal any more: {error}") from error

    def _on_status(self) -> None:
        try:
            data = os.read(self._status_read, 4096)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._status_read)
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            if line.isdigit():
                self._statuses.put_nowait(int(line))

    def _forget_old_statuses(self) -> None:
        while not self._statuses.empty():
            self._statuses.get_nowait()

    async def _status(self, timeout: float, expect: list[str] | None = None, start: int = 0) -> int | None:
        """Exit status of the command that runs; None when one of `expect` showed up before its end."""
        assert self.process is not None
        end = time.monotonic() + timeout
        died = asyncio.ensure_future(self.process.wait())
        waiting = asyncio.ensure_future(self._statuses.get())
        try:
            while True:
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeLimit(f"no end within {timeout:g} s")
                pause = min(left, _POLL_SECONDS) if expect else left
                await asyncio.wait({died, waiting}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    return waiting.result()
                if died.done():
                    code = died.result()
                    raise SessionEnded(
                        f"the shell of session {self.name!r} exited with code {code} during the command",
                        exit_code=128 - code if code < 0 else code,
                    )
                if expect and any(word in self._peek(start) for word in expect):
                    return None
        finally:
            for future in (died, waiting):
                future.cancel()

    async def _back_to_prompt(self) -> None:
        assert self.process is not None
        for step in range(5):
            with contextlib.suppress(OSError):
                os.write(self._terminal, b"\x03")
            if step:
                await asyncio.to_thread(kill_family, self.process.pid, itself=False)
                with contextlib.suppress(OSError):
                    os.write(self._terminal, f" {_REPORT} 130\n".encode())
            with contextlib.suppress(TimeLimit, SessionEnded):
                await self._status(_AFTER_INTERRUPT_SECONDS)
                return
            if self.process.returncode is not None:
                return
        await asyncio.to_thread(kill_family, self.process.pid, self.mark)

    def _size(self) -> int:
        return self._output.stat().st_size

    def _other_writers(self) -> bool:
        """True while a background child of the session may still write."""
        assert self.process is not None
        with contextlib.suppress(OSError):
            return bool(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().strip())
        return True

    def _peek(self, start: int) -> str:
        with self._output.open("rb") as stream:
            stream.seek(max(start, self._size() - MAX_STREAM_BYTES))
            return stream.read().decode(errors="replace")

    def _take_output(self, start: int = 0) -> tuple[str, str | None]:
        """Output from byte `start` on; above the limit its middle is left out and the whole is kept in a file."""
        size = self._size() - start
        with self._output.open("rb") as stream:
            stream.seek(start)
            if size <= MAX_STREAM_BYTES:
                return stream.read().decode(errors="replace"), None
            kept = self.folder / f"output-{self._number}"
            with kept.open("wb") as copy:
                shutil.copyfileobj(stream, copy, 1 << 20)
        half = MAX_STREAM_BYTES // 2
        with kept.open("rb") as stream:
            head = stream.read(half)
            stream.seek(-half, os.SEEK_END)
            tail = stream.read()
        gap = f"\n[... {size - 2 * half} bytes left out; all of it is in {kept} ...]\n"
        return head.decode(errors="replace") + gap + tail.decode(errors="replace"), str(kept)

    def _close_files(self) -> None:
        if self._status_read >= 0:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._status_read)
        for fd in (self._terminal, self._status_read):
            if fd >= 0:
                os.close(fd)
        self._terminal = self._status_read = -1


class Sessions:
    """The sessions of one rocklet, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open: dict[str, BashSession] = {}

    async def create(self, request: CreateSession) -> str:
        if request.session_type != "bash":
            raise RockletError(f"session_type {request.session_type!r} is not known; use 'bash'")
        old = self.open.get(request.session)
        if old is not None:
            if old.process is None or old.process.returncode is None:
                raise SessionExists(f"session {request.session!r} is open already; close it or use another name")
            await self.close(request.session)
        session = BashSession(request, self.folder / uuid.uuid4().hex[:12])
        self.open[request.session] = session
        try:
            return await session.start()
        except BaseException:
            self.open.pop(request.session, None)
            await session.close()
            raise

    def get(self, name: str) -> BashSession:
        session = self.open.get(name)
        if session is None:
            raise SessionMissing(f"session {name!r} does not exist; open: {sorted(self.open) or 'none'}")
        return session

    async def close(self, name: str) -> None:
        session = self.get(name)
        del self.open[name]
        await session.close()

    async def close_all(self) -> None:
        for name in list(self.open):
            await self.close(name)


def _take_terminal() -> None:
    """In the child: a session of its own with standard input as its terminal."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
