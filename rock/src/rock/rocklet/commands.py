"""Runs commands with their output on disk, so that neither a large output nor a stray child can harm the rocklet."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rock.rocklet.errors import JobMissing, RockletError
from rock.rocklet.models import Command, CommandResponse, JobPoll, JobStart, JobStatus
from rock.runtime.local.enter import account
from rock.runtime.processes import MARK, kill_family

SHELL_TEXT = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; else exec sh -c "$1"; fi'
MAX_STREAM_BYTES = 8 << 20
_POLL_SECONDS = 0.05
_KEEP_FINISHED = 1000


@dataclass
class Job:
    """A started command and its files. `wait` returns its exit status (negative: a signal's number)."""

    job_id: str
    pid: int
    folder: Path
    output: Path
    wait: Callable[[], Awaitable[int]]
    deadline: float | None
    timed_out: bool = False
    exit_code: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def kill(self) -> None:
        await asyncio.to_thread(kill_family, self.pid, self.job_id)


@dataclass(frozen=True)
class BackgroundCommand:
    """A command that a session started in its background."""

    job_id: str
    pid: int
    folder: Path
    output: Path
    wait: Callable[[], Awaitable[int]]


class CommandRunner:
    """All commands of one rocklet.

    Args:
        folder: where outputs are kept; made on first use.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: dict[str, Job] = {}
        self._watchers: set[asyncio.Task[None]] = set()

    async def execute(self, command: Command) -> CommandResponse:
        """Runs a command to its end or its time-out; then it is killed with its children and exit_code is None."""
        job = await self._launch(command, separate=True)
        try:
            await job.ended.wait()
        except asyncio.CancelledError:
            await job.kill()
            raise
        finally:
            self.jobs.pop(job.job_id, None)
        out, out_file = read_bounded(job.folder / "stdout", MAX_STREAM_BYTES)
        err, err_file = read_bounded(job.folder / "stderr", MAX_STREAM_BYTES)
        if out_file is None and err_file is None:
            shutil.rmtree(job.folder, ignore_errors=True)
        return CommandResponse(
            stdout=out,
            stderr=err,
            exit_code=None if job.timed_out else job.exit_code,
            timed_out=job.timed_out,
            stdout_file=out_file,
            stderr_file=err_file,
        )

    async def start(self, request: JobStart) -> JobStatus:
        """Starts a long command whose streams go to one file."""
        job = await self._launch(request, separate=False, output=request.output_file)
        return self._status(job)

    async def poll(self, request: JobPoll) -> JobStatus:
        """State of a job after its end, new output or the wait, whichever comes first.

        Raises:
            JobMissing: no such job (or it was forgotten).
        """
        job = self._job(request.job_id)
        end = time.monotonic() + request.wait
        while not job.ended.is_set():
            left = end - time.monotonic()
            if left <= 0:
                break
            if request.until == "output" and request.offset is not None and _size(job.output) > request.offset:
                break
            pause = left if request.until == "end" else min(left, _POLL_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(job.ended.wait(), pause)
        return self._status(job, request)

    async def kill(self, job_id: str) -> JobStatus:
        """Kills a job with all its children and waits for its end."""
        job = self._job(job_id)
        await job.kill()
        await asyncio.wait_for(job.ended.wait(), 10)
        return self._status(job)

    def _job(self, job_id: str) -> Job:
        job = self.jobs.get(job_id)
        if job is None:
            raise JobMissing(f"job {job_id!r} is unknown here; it ended long ago or the rocklet was restarted")
        return job

    def _status(self, job: Job, request: JobPoll | None = None) -> JobStatus:
        status = JobStatus(
            job_id=job.job_id,
            pid=job.pid,
            running=not job.ended.is_set(),
            exit_code=job.exit_code if job.ended.is_set() else None,
            timed_out=job.timed_out,
            output_file=str(job.output),
        )
        if request is not None and request.offset is not None:
            with contextlib.suppress(OSError), job.output.open("rb") as stream:
                stream.seek(request.offset)
                data = stream.read(request.max_bytes)
                if status.running:
                    data = whole_characters(data)
                status.output, status.next_offset = data.decode(errors="replace"), request.offset + len(data)
        return status

    async def _launch(self, command: Command, *, separate: bool, output: str | None = None) -> Job:
        job_id = uuid.uuid4().hex[:12]
        folder = self.folder / job_id
        try:
            folder.mkdir(parents=True, exist_ok=True)
            target = Path(output) if output else folder / ("stdout" if separate else "output")
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as stack:
                out = stack.enter_context(target.open("ab"))
                err = stack.enter_context((folder / "stderr").open("ab")) if separate else out
                stdin: Any = asyncio.subprocess.DEVNULL
                if command.stdin is not None:
                    stdin = stack.enter_context(tempfile.TemporaryFile(dir=folder))
                    stdin.write(command.stdin.encode())
                    stdin.seek(0)
                process = await asyncio.create_subprocess_exec(
                    *command_line(command.command), stdin=stdin, stdout=out, stderr=err, start_new_session=True,
                    cwd=command.cwd or None, **identity(command.user, {**(command.env or {}), MARK: job_id}),
                )  # fmt: skip
        except (OSError, ValueError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise RockletError(f"cannot run the command: {error}", exit_code=127) from error
        prefer_to_kill(process.pid)
        return self._register(job_id, process.pid, folder, target, process.wait, command.timeout)

    def adopt(self, started: BackgroundCommand, timeout: float | None) -> JobStatus:
        """Makes a job of a command that a session runs in its background."""
        job = self._register(started.job_id, started.pid, started.folder, started.output, started.wait, timeout)
        return self._status(job)

    def _register(
        self,
        job_id: str,
        pid: int,
        folder: Path,
        output: Path,
        wait: Callable[[], Awaitable[int]],
        timeout: float | None,
    ) -> Job:
        deadline = time.monotonic() + timeout if timeout else None
        job = Job(job_id, pid, folder, output, wait, deadline)
        self.jobs[job_id] = job
        watcher = asyncio.create_task(self._watch(job))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        self._forget_old()
        return job

    async def _watch(self, job: Job) -> None:
        left = None if job.deadline is None else job.deadline - time.monotonic()
        try:
            code = await asyncio.wait_for(job.wait(), left)
        except TimeoutError:
            job.timed_out = True
            await job.kill()
            code = await job.wait()
        job.exit_code = 128 - code if code < 0 else code
        job.ended.set()

    def _forget_old(self) -> None:
        finished = [job for job in self.jobs.values() if job.ended.is_set()]
        for job in finished[: max(0, len(finished) - _KEEP_FINISHED)]:
            del self.jobs[job.job_id]
            shutil.rmtree(job.folder, ignore_errors=True)

    async def close(self) -> None:
        """Kills all that still runs."""
        for job in list(self.jobs.values()):
            if not job.ended.is_set():
                await job.kill()


def command_line(command: str | list[str]) -> list[str]:
    """Program and arguments.

    Raises:
        ValueError: an empty command or a NUL character in it.
    """
    argv = ["/bin/sh", "-c", SHELL_TEXT, "sh", command] if isinstance(command, str) else command
    if not argv or not argv[0]:
        raise ValueError("command is empty: give a program")
    if any("\0" in word for word in argv):
        raise ValueError("command holds a NUL character")
    return argv


def identity(user: str | None, env: dict[str, str]) -> dict[str, Any]:
    """Arguments for a subprocess that runs as `user` (None: as the rocklet) with `env` over the rocklet's."""
    environment = {**os.environ, **env}
    if not user:
        return {"env": environment}
    uid, gid, groups, home = account(user)
    environment.update({"HOME": home, "USER": user, **env})
    if uid == os.getuid():
        return {"env": environment}
    return {"env": environment, "user": uid, "group": gid, "extra_groups": groups}


def prefer_to_kill(pid: int) -> None:
    """When memory runs out inside the sandbox, commands go before the rocklet."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("500")


def read_bounded(path: Path, limit: int) -> tuple[str, str | None]:
    """Text of a file, its middle left out above `limit` bytes; then the path comes along."""
    size = _size(path)
    with path.open("rb") as stream:
        if size <= limit:
            return stream.read(limit).decode(errors="replace"), None
        head = stream.read(limit // 2)
        stream.seek(size - limit // 2)
        tail = stream.read(limit // 2)
    gap = f"\n[... {size - limit} bytes left out; all of it is in {path} ...]\n"
    return head.decode(errors="replace") + gap + tail.decode(errors="replace"), str(path)


def whole_characters(data: bytes) -> bytes:
    """Cuts a UTF-8 sequence that is not complete yet off the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if length > back else data
    return data


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
