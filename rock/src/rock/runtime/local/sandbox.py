"""NamespaceSandbox: the primitive that the admin's local runtime and the Harbor environment share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import rock
from rock.errors import SandboxError, SandboxStartError
from rock.runtime.local.archive import pack, unpack_host
from rock.runtime.local.cgroups import SandboxCgroup, own_groups
from rock.runtime.local.root import LocalRoot
from rock.runtime.local.spec import ExecResult, SandboxSpec
from rock.runtime.processes import MARK

_SOURCE = str(Path(rock.__file__).parent.parent)
_START_SECONDS, _STOP_SECONDS = 40.0, 20.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TIMEOUT_CODE = 124
# bash where the image has it, without reading start-up files
_SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; else exec sh -c "$1"; fi'
MAX_OUTPUT_BYTES = 64 << 20


def _python(module: str) -> list[str]:
    """Command line of one of our helper modules: no site packages, no environment, quick to start."""
    code = f"import sys; sys.path.insert(0, {_SOURCE!r}); from rock.runtime.local.{module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", code]


class NamespaceSandbox:
    """One sandbox on this machine: a private root, own processes, own network, limits; gone without a trace after it.

    ```python
    root = LocalRoot("/var/lib/rock")
    sandbox = NamespaceSandbox(root, SandboxSpec("demo", binds=(Bind("/data", "/data"),), limits=Limits(cpus=1)))
    await sandbox.start()
    result = await sandbox.exec("echo hello", timeout=10)        # str: by bash (sh if the image has none)
    await sandbox.put("/host/folder", "/testbed")                # files and folders, nothing of the image is run
    await sandbox.get("/logs", "/host/logs")
    layer = await sandbox.snapshot()                             # what was written, as a layer of the store
    await sandbox.stop()
    ```

    Works as root of the machine, as a user without rights (user namespaces) and inside another sandbox. There, use
    `network="host"` to share the outer sandbox's network (its loopback included).
    """

    def __init__(self, root: LocalRoot, spec: SandboxSpec) -> None:
        self.root = root
        self.spec = spec
        self.pid = 0
        self.notes: list[str] = []
        self.limits_missing: list[str] = []
        self.end_reason: str | None = None
        self._keeper: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._trees: list[str] = []
        self._mapped = True

    @property
    def running(self) -> bool:
        return self._keeper is not None and self.end_reason is None and self.pid > 0

    async def start(self) -> None:
        """Builds the sandbox and returns when commands can run.

        Raises:
            SandboxStartError: with the reason; nothing is left behind.
        """
        if self._keeper is not None:
            raise SandboxStartError(f"sandbox {self.spec.sandbox_id} was started before; make a new one")
        try:
            request = await asyncio.to_thread(self.root.prepare, self.spec)
        except OSError as error:
            raise SandboxStartError(f"sandbox {self.spec.sandbox_id}: {error}") from error
        self._trees = request["trees"]
        try:
            self._keeper = await asyncio.create_subprocess_exec(
                *_python("keeper"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
                env={"PATH": _PATH, "LANG": "C.UTF-8"},
                cwd="/",
            )
            assert self._keeper.stdin is not None
            self._keeper.stdin.write(json.dumps(request).encode() + b"\n")
            await self._keeper.stdin.drain()
            event = await asyncio.wait_for(self._event(), _START_SECONDS)
        except (OSError, TimeoutError) as error:
            await self.stop()
            raise SandboxStartError(f"sandbox {self.spec.sandbox_id}: keeper gave no answer ({error})") from error
        except BaseException:
            await self.stop()
            raise
        if event.get("event") != "ready":
            await self.stop()
            raise SandboxStartError(f"sandbox {self.spec.sandbox_id}: {event.get('reason', 'its keeper died')}")
        self.pid, self.notes, self.limits_missing = event["pid"], event["notes"], event["limits_missing"]
        self._mapped = request["mapped"]
        self._watcher = asyncio.create_task(self._watch())

    async def _event(self) -> dict[str, Any]:
        assert self._keeper is not None and self._keeper.stdout is not None
        line = await self._keeper.stdout.readline()
        return json.loads(line) if line else {}

    async def _watch(self) -> None:
        event = await self._event()
        self.end_reason = event.get("reason", "its keeper died")

    async def wait(self) -> str:
        """Waits for the end of the sandbox (stop, time limit, death of its init) and returns the reason."""
        if self._watcher is not None:
            await asyncio.shield(self._watcher)
        return self.end_reason or "not started"

    async def stop(self) -> None:
        """Ends every process inside and removes the sandbox. Does nothing on a sandbox that has ended."""
        keeper, self_pid = self._keeper, self.pid
        if keeper is None:
            self.root.discard(self.spec)
            return
        if keeper.stdin is not None:
            with contextlib.suppress(ConnectionError):
                keeper.stdin.write(b"stop\n")
                await keeper.stdin.drain()
            keeper.stdin.close()
        try:
            await asyncio.wait_for(keeper.wait(), _STOP_SECONDS)
        except TimeoutError:
            for pid in (self_pid, keeper.pid):
                with contextlib.suppress(ProcessLookupError):
                    if pid:
                        os.kill(pid, signal.SIGKILL)
            await keeper.wait()
        if self._watcher is not None:
            await self._watcher
        self.end_reason = self.end_reason or "stopped by its owner"
        if not self.spec.keep:
            await asyncio.to_thread(self.root.discard, self.spec)

    # -- commands -------------------------------------------------------------------------------------------------

    def enter_request(self, action: str, **more: Any) -> str:
        """The JSON request by which a helper enters this sandbox (see `rock.runtime.local.enter`)."""
        if not self.running:
            raise SandboxError(f"sandbox {self.spec.sandbox_id} is not running: {self.end_reason or 'not started'}")
        group = SandboxCgroup(self.spec.sandbox_id).name
        folders = [str(parent / group) for _, parent in own_groups() if (parent / group).is_dir()]
        request = {
            "pid": self.pid,
            "network": self.spec.network,
            "cgroups": folders,
            "action": action,
            "mapped": self._mapped,
            "limits": asdict(self.spec.limits),
            "missing": self.limits_missing,
            "user": "",
            "cwd": "/",
            "env": {},
            **more,
        }
        return json.dumps(request)

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: int | IO[bytes] = asyncio.subprocess.DEVNULL,
        stdout: int | IO[bytes] = asyncio.subprocess.PIPE,
        stderr: int | IO[bytes] = asyncio.subprocess.PIPE,
    ) -> asyncio.subprocess.Process:
        """Starts a command and returns its helper process: its exit code is the command's, SIGTERM to it kills the
        command with all its children."""
        argv = ["/bin/sh", "-c", _SHELL, "sh", command] if isinstance(command, str) else list(command)
        if not argv:
            raise ValueError("command is an empty list: give at least the program")
        environment = {"PATH": _PATH, "LANG": "C.UTF-8", **self.spec.env, **(env or {}), MARK: uuid.uuid4().hex}
        request = self.enter_request("exec", argv=argv, cwd=cwd or self.spec.workdir, env=environment, user=user or "")
        return await asyncio.create_subprocess_exec(
            *_python("enter"), request, stdin=stdin, stdout=stdout, stderr=stderr, env={}, cwd="/",
            start_new_session=True,
        )  # fmt: skip

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: bytes | None = None,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        """Runs a command to its end.

        Args:
            command: a string for bash (sh where there is none), or program and arguments.
            cwd: working directory; default is the spec's.
            user: name, uid or "user:group" of the sandbox's own accounts; default root.
            timeout: seconds; afterwards the command and all its children are killed and exit_code is 124.
            max_output: bytes of each stream that are kept (the first ones).

        Raises:
            SandboxError: the sandbox is not running.
        """
        out, err = await _Collector.open(max_output), await _Collector.open(max_output)
        try:
            process = await self.spawn(
                command, cwd=cwd, env=env, user=user, stdout=out.write_end, stderr=err.write_end,
                stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            )  # fmt: skip
        except BaseException:
            out.close()
            err.close()
            raise
        finally:
            out.started()
            err.started()
        timed_out = False
        try:
            async with asyncio.timeout(timeout):
                if stdin is not None and process.stdin is not None:
                    with contextlib.suppress(ConnectionError):
                        process.stdin.write(stdin)
                        await process.stdin.drain()
                    process.stdin.close()
                await process.wait()
        except TimeoutError:
            timed_out = True
        finally:
            if process.returncode is None:
                await _kill(process)
            # The command is over; a background child may hold the pipes open for ever.
            await asyncio.wait([out.task, err.task], timeout=0.2)
            out.close()
            err.close()
        return ExecResult(
            stdout=out.data.decode(errors="replace"),
            stderr=err.data.decode(errors="replace"),
            exit_code=_TIMEOUT_CODE if timed_out else process.returncode or 0,
            timed_out=timed_out,
            truncated=out.truncated or err.truncated,
        )

    # -- files ----------------------------------------------------------------------------------------------------

    async def put(self, source: str | Path, target: str) -> None:
        """Copies a file or the content of a folder in, as root of the sandbox. A file goes to exactly `target`.

        Raises:
            FileNotFoundError: `source` does not exist.
            SandboxError: the target cannot be written.
        """
        source = Path(source)
        folder, name = (target, "") if source.is_dir() else os.path.split(target)
        with tempfile.TemporaryFile() as stream:
            await asyncio.to_thread(pack, str(source), stream, name or None)
            stream.seek(0)
            await self._transfer(["unpack", folder or "/"], stdin=stream, what=f"copy {source} to {target}")

    async def get(self, source: str, target: str | Path) -> list[str]:
        """Copies a file or the content of a folder out, as far as it is files, folders and links that stay inside.

        Returns:
            Names that were left out.

        Raises:
            SandboxError: the source cannot be read.
        """
        target = Path(target)
        with tempfile.TemporaryFile() as stream:
            await self._transfer(["pack", source], stdout=stream, what=f"copy {source} to {target}")
            stream.seek(0)
            return await asyncio.to_thread(unpack_host, stream, target)

    async def write_file(self, target: str, content: bytes, mode: int = 0o644) -> None:
        """Writes one file inside; missing folders are made."""
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder, "content")
            local.write_bytes(content)
            local.chmod(mode)
            await self.put(local, target)

    async def read_file(self, source: str) -> bytes:
        """Content of one regular file inside."""
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder, "content")
            await self.get(source, local)
            if not local.is_file():
                raise SandboxError(f"{source} in sandbox {self.spec.sandbox_id} is not a regular file")
            return local.read_bytes()

    async def _transfer(
        self, action: list[str], what: str, stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None
    ) -> None:
        request = self.enter_request(action[0], path=action[1], argv=[action[0]])
        process = await asyncio.create_subprocess_exec(
            *_python("enter"), request, stdin=stdin or asyncio.subprocess.DEVNULL,
            stdout=stdout or asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env={}, cwd="/",
            start_new_session=True,
        )  # fmt: skip
        try:
            _, message = await process.communicate()
        finally:
            if process.returncode is None:
                await _kill(process)
        if process.returncode != 0:
            text = message.decode(errors="replace").strip().removeprefix("rock: ")
            raise SandboxError(f"{what} (sandbox {self.spec.sandbox_id}): {text or process.returncode}")

    # -- images ---------------------------------------------------------------------------------------------------

    async def snapshot(self) -> str:
        """Stores what has been written over base and layers as a new layer. Returns its folder.

        Start from it with `SandboxSpec(layers=(new, *old_layers))`. Files that are being written meanwhile may be torn.
        """
        return str(await asyncio.to_thread(self.root.take_layer, self.spec, self._trees))


class _Collector:
    """One end of a pipe that keeps the first `limit` bytes. asyncio's own pipes will not do: with them a process counts
    as running until the last of its children has closed them."""

    def __init__(
        self, write_end: int, transport: asyncio.ReadTransport, stream: asyncio.StreamReader, limit: int
    ) -> None:
        self.write_end = write_end
        self.data = bytearray()
        self.truncated = False
        self._transport = transport
        self.task = asyncio.create_task(self._read(stream, limit))

    @staticmethod
    async def open(limit: int) -> _Collector:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(read_end, "rb", buffering=0)
        )
        return _Collector(write_end, transport, stream, limit)

    async def _read(self, stream: asyncio.StreamReader, limit: int) -> None:
        while chunk := await stream.read(1 << 16):
            room = limit - len(self.data)
            self.data += chunk[:room]
            self.truncated = self.truncated or len(chunk) > room

    def started(self) -> None:
        """The command has its copy of the write end: ours goes."""
        os.close(self.write_end)

    def close(self) -> None:
        self.task.cancel()
        self._transport.close()


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Ends a helper and with it the command; a helper that does not obey within 2 s is killed (its child follows)."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(process.wait())), 2.0)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
