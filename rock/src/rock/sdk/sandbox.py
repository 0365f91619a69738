"""Sandbox: start one, run commands in it, move files, reach its ports, stop it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

import httpx

from rock.errors import CommandTimeout, RockError, SandboxError, SandboxGone, SandboxStartError, TransportError
from rock.sdk.config import SandboxConfig
from rock.sdk.files import FileSystem
from rock.sdk.process import Process
from rock.sdk.responses import CommandResponse, FileResult, IsAlive, Observation, ReadResult, SandboxStatus
from rock.sdk.transport import AdminTransport

_LOG = logging.getLogger("rock.sdk")
_MARGIN_SECONDS = 45.0
_POLL_SECONDS = 25.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.03, 1.0  # for admins that do not wait
_STATUS_WAIT_SECONDS = 20.0
_FILE_SECONDS = 600.0


class Sandbox:
    """One sandbox of an admin.

    ```python
    async with Sandbox(SandboxConfig(image="local", memory="2g")) as sandbox:      # starts, stops at the end
        result = await sandbox.execute("python3 -V")
        await sandbox.create_session(session="s")
        seen = await sandbox.arun("make test", session="s", mode="nohup", wait_timeout=1800)
    ```
    """

    def __init__(self, config: SandboxConfig, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.config = config
        self.sandbox_id: str = ""
        self.transport = AdminTransport(config.base_url, config.headers(), transport)

    @classmethod
    async def attach(cls, sandbox_id: str, config: SandboxConfig | None = None) -> Self:
        """A sandbox that is there already.

        Raises:
            SandboxNotFound: the admin does not know it.
        """
        sandbox = cls(config or SandboxConfig())
        sandbox.sandbox_id = sandbox_id
        await sandbox.get_status()
        return sandbox

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts the sandbox and waits until commands can run.

        Raises:
            SandboxStartError: a phase failed, or `startup_timeout` is over; the sandbox is stopped then.
        """
        if self.sandbox_id:
            raise SandboxStartError(
                f"sandbox {self.sandbox_id} was started already; make a new Sandbox", self.sandbox_id
            )
        end = time.monotonic() + self.config.startup_timeout
        answer = await self.transport.call("POST", "/start_async", json=self.config.start_body())
        self.sandbox_id = answer["sandbox_id"]
        pause = _FIRST_PAUSE_SECONDS
        try:
            while True:
                status = await self.get_status(wait=max(0.0, min(_STATUS_WAIT_SECONDS, end - time.monotonic())))
                if status.state == "running" and status.is_alive:
                    return
                self._raise_failed(status)
                if time.monotonic() > end:
                    raise SandboxStartError(
                        f"sandbox {self.sandbox_id} was not ready within startup_timeout "
                        f"{self.config.startup_timeout:g} s (phases: {status.status})",
                        self.sandbox_id,
                    )
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
        except BaseException:
            await asyncio.shield(self.stop())
            raise

    def _raise_failed(self, status: SandboxStatus) -> None:
        for phase, fields in status.status.items():
            if fields.get("status") in ("failed", "timeout"):
                message = f"sandbox {self.sandbox_id}: phase {phase} {fields['status']}: {fields.get('message')}"
                raise SandboxStartError(message, self.sandbox_id)
        if status.state in ("stopped", "deleted"):
            raise SandboxStartError(
                f"sandbox {self.sandbox_id} ended during its start: {status.message}", self.sandbox_id
            )

    async def stop(self) -> None:
        """Stops the sandbox. Never raises: an end that failed is logged, and auto-clear follows."""
        if not self.sandbox_id:
            return
        try:
            await self.transport.call("POST", "/stop", json={"sandbox_id": self.sandbox_id})
        except RockError as error:
            _LOG.warning("sandbox %s could not be stopped: %s", self.sandbox_id, error)

    async def delete(self) -> None:
        """Stops the sandbox and removes all that is kept of it."""
        await self.transport.call("POST", "/delete", json={"sandbox_id": self._id()})

    async def restart(self) -> None:
        """Starts a stopped sandbox again (where the service keeps stopped ones)."""
        await self.transport.call(
            "POST", "/restart", json={"sandbox_id": self._id()}, timeout=self.config.startup_timeout
        )

    async def archive(self) -> None:
        """Moves a stopped sandbox to the service's object store."""
        await self.transport.call("POST", f"/sandboxes/{quote(self._id())}/archive")

    async def commit(self, image_tag: str, username: str | None = None, password: str | None = None) -> CommandResponse:
        """Stores the present content as an image of the service."""
        body = {"sandbox_id": self._id(), "image_tag": image_tag, "username": username, "password": password}
        return CommandResponse(**await self.transport.call("POST", "/commit", json=body, timeout=1800))

    async def close(self) -> None:
        """Stops the sandbox and closes the connections."""
        await self.stop()
        await self.transport.close()

    async def __aenter__(self) -> Self:
        if not self.sandbox_id:
            await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.shield(self.close())

    async def get_status(self, wait: float = 0.0) -> SandboxStatus:
        """State of the sandbox.

        Args:
            wait: seconds to wait at most while its start is under way.
        """
        params = {"sandbox_id": self._id(), **({"wait": wait} if wait else {})}
        return SandboxStatus(**await self.transport.call("GET", "/get_status", params=params, timeout=30 + wait))

    async def is_alive(self) -> IsAlive:
        return IsAlive(**await self.transport.call("GET", "/is_alive", params={"sandbox_id": self._id()}, timeout=30))

    def _id(self) -> str:
        if not self.sandbox_id:
            raise SandboxError("the sandbox is not started: await sandbox.start() first")
        return self.sandbox_id

    # -- commands -------------------------------------------------------------------------------------------------

    async def execute(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = 1200.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        check: bool = False,
        stdin: str | None = None,
    ) -> CommandResponse:
        """Runs a command to its end: a string in bash, a list without a shell.

        Raises:
            CommandTimeout: it ran longer than `timeout` seconds and was killed; `details` holds its output.
            SandboxError: it could not be run, or `check` is set and its exit code is not 0.
        """
        body = {
            "sandbox_id": self._id(), "command": command if isinstance(command, str) else list(command),
            "timeout": timeout, "env": dict(env) if env else None, "cwd": cwd, "user": user, "check": check,
            "stdin": stdin,
        }  # fmt: skip
        return CommandResponse(
            **await self.transport.call("POST", "/execute", json=body, timeout=timeout + _MARGIN_SECONDS)
        )

    async def create_session(
        self,
        session: str = "default",
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        startup_source: Sequence[str] = (),
        remote_user: str | None = None,
    ) -> Observation:
        """Opens a bash session, which keeps its folder, variables and functions between commands."""
        body = {
            "sandbox_id": self._id(), "session": session, "env": dict(env) if env else None, "cwd": cwd,
            "startup_source": list(startup_source), "remote_user": remote_user,
        }  # fmt: skip
        return Observation(**await self.transport.call("POST", "/create_session", json=body))

    async def close_session(self, session: str = "default") -> None:
        await self.transport.call("POST", "/close_session", json={"sandbox_id": self._id(), "session": session})

    async def interrupt(self, session: str = "default", grace: float = 2.0) -> None:
        """Ctrl-C for what runs in a session; what ignores it for `grace` seconds is killed."""
        body = {"sandbox_id": self._id(), "session": session, "grace": grace}
        await self.transport.call("POST", "/interrupt_session", json=body)

    async def arun(
        self,
        cmd: str,
        session: str | None = None,
        mode: Literal["normal", "nohup"] = "normal",
        wait_timeout: float = 300.0,
        wait_interval: float = 10.0,
        check: Literal["raise", "silent", "ignore"] = "silent",
        expect: Sequence[str] = (),
        output_file: str | None = None,
    ) -> Observation:
        """Runs a command line in a session (mode "normal") or as a long command (mode "nohup").

        A long command runs apart from the connection; its end is noticed at once, its exit code is the true one.

        Args:
            session: name of an open session; None: no session (a shell of its own).
            wait_timeout: seconds; then the command is stopped.
            wait_interval: kept for older callers; waiting is by long poll.
            output_file: long commands: file inside that gets both streams.

        Raises:
            CommandTimeout: it did not end within `wait_timeout`; `details["output"]` holds what it wrote.
        """
        if mode == "nohup":
            return await self._run_long(cmd, session, wait_timeout, output_file)
        if session is None:
            result = await self.execute(cmd, timeout=wait_timeout)
            return Observation(output=result.stdout + result.stderr, exit_code=result.exit_code)
        body = {
            "sandbox_id": self._id(), "command": cmd, "session": session, "timeout": wait_timeout, "check": check,
            "expect": list(expect),
        }  # fmt: skip
        answer = await self.transport.call("POST", "/run_in_session", json=body, timeout=wait_timeout + _MARGIN_SECONDS)
        return Observation(**answer)

    async def _run_long(
        self, cmd: str, session: str | None, wait_timeout: float, output_file: str | None
    ) -> Observation:
        job = await self.start_job(cmd, session=session, timeout=wait_timeout, output_file=output_file)
        end = time.monotonic() + wait_timeout + _MARGIN_SECONDS
        output: list[str] = []
        offset = 0
        try:
            while True:
                status = await self.poll_job(job["job_id"], wait=_POLL_SECONDS, offset=offset, until="end")
                output.append(status["output"])
                grown, offset = status["next_offset"] > offset, status["next_offset"]
                if not status["running"] and not grown:
                    break
                if time.monotonic() > end:
                    raise CommandTimeout(f"no end of job {job['job_id']} within {wait_timeout:g} s", self.sandbox_id)
        except BaseException as error:
            if not isinstance(error, (SandboxGone, TransportError)):
                await asyncio.shield(self._kill_quietly(job["job_id"]))
            raise
        text = "".join(output)
        if status["timed_out"]:
            late = CommandTimeout(f"command ran longer than {wait_timeout:g} s and was killed", self.sandbox_id)
            late.details = {"output": text, "output_file": status["output_file"]}
            raise late
        return Observation(output=text, exit_code=status["exit_code"], output_file=status["output_file"])

    async def start_job(
        self,
        command: str | Sequence[str],
        *,
        session: str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        output_file: str | None = None,
    ) -> dict[str, Any]:
        """Starts a long command and returns {"job_id", "pid", "output_file", ...} at once."""
        body = {
            "sandbox_id": self._id(), "command": command if isinstance(command, str) else list(command),
            "session": session, "timeout": timeout, "env": dict(env) if env else None, "cwd": cwd,
            "output_file": output_file,
        }  # fmt: skip
        return await self.transport.call("POST", "/start_job", json=body)

    async def poll_job(
        self, job_id: str, *, wait: float = 25.0, offset: int | None = None, until: Literal["end", "output"] = "end"
    ) -> dict[str, Any]:
        """State of a long command after its end (or new output), or after `wait` seconds."""
        body = {"sandbox_id": self._id(), "job_id": job_id, "wait": wait, "offset": offset, "until": until}
        return await self.transport.call("POST", "/poll_job", json=body, timeout=wait + _MARGIN_SECONDS)

    async def kill_job(self, job_id: str) -> dict[str, Any]:
        return await self.transport.call("POST", "/kill_job", json={"sandbox_id": self._id(), "job_id": job_id})

    async def _kill_quietly(self, job_id: str) -> None:
        try:
            await self.kill_job(job_id)
        except RockError as error:
            _LOG.warning("job %s of sandbox %s could not be killed: %s", job_id, self.sandbox_id, error)

    # -- files and ports ------------------------------------------------------------------------------------------

    async def read_file(self, path: str, encoding: str | None = None, errors: str | None = None) -> ReadResult:
        body = {"sandbox_id": self._id(), "path": path, "encoding": encoding, "errors": errors}
        return ReadResult(**await self.transport.call("POST", "/read_file", json=body))

    async def write_file(self, path: str, content: str, mode: int | None = None) -> FileResult:
        body = {"sandbox_id": self._id(), "path": path, "content": content, "mode": mode}
        return FileResult(**await self.transport.call("POST", "/write_file", json=body))

    async def upload_by_path(self, source: str | Path, target: str) -> FileResult:
        """Copies one file in, to exactly `target`.

        Raises:
            FileNotFoundError: `source` is not a file.
        """
        source = Path(source)
        if not source.is_file():
            raise FileNotFoundError(f"{source} is not a file; folders go through sandbox.fs.upload_dir")
        with source.open("rb") as stream:
            answer = await self.transport.call(
                "POST", "/upload", files={"file": (source.name, stream, "application/octet-stream")},
                data={"target_path": target, "sandbox_id": self._id()}, timeout=_FILE_SECONDS,
            )  # fmt: skip
        return FileResult(**answer)

    async def request(
        self, method: str, port: int, path: str = "/", *, timeout: float = 60.0, **options: Any
    ) -> httpx.Response:
        """One HTTP request to a server that listens on `port` of the sandbox's loopback (no network is needed).

        Args:
            options: as for httpx: json, content, params, headers.

        Raises:
            SandboxError: the sandbox is gone or nothing answers there.
        """
        route = f"/sandboxes/{quote(self._id())}/proxy/port/{port}/{path.lstrip('/')}"
        answer = await self.transport.raw(method, route, timeout=timeout, **options)
        if answer.status_code == 511:
            problem = answer.json().get("rockletexception", {})
            raise SandboxError(problem.get("message", f"nothing answers on port {port}"), self.sandbox_id)
        return answer

    @cached_property
    def fs(self) -> FileSystem:
        """Files and folders."""
        return FileSystem(self)

    @cached_property
    def process(self) -> Process:
        """Scripts."""
        return Process(self)
