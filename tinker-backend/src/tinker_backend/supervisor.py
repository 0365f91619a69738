"""Starts the runtime process, watches it, and starts it again when it dies or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .config import RuntimeSection
from .dispatch.link import RuntimeLink
from .errors import RuntimeGone
from .runtime.roles import ModelCard, RuntimeFault
from .socket_folder import SocketFolder

log = logging.getLogger(__name__)

_MAX_FAILED_STARTS = 4
_MAX_KILLED_STARTS = 16
_COOL_DOWN = 20.0
_PING_SECONDS = 10.0
_SILENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Death:
    """How a runtime process ended. ``outside``: a SIGKILL that the kernel's memory limit did not send. ``told``: the
    runtime gave the reason itself."""

    pid: int
    code: int
    outside: bool
    reason: str
    told: bool = False


def oom_kills() -> int:
    """How many processes the kernel has killed for memory in this container, as far as it says."""
    for path, key in (
        ("/sys/fs/cgroup/memory.events", "oom_kill"),
        ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill"),
    ):
        with contextlib.suppress(OSError, ValueError):
            for line in Path(path).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
    return 0


class _Launched:
    """A process from before the event loop, with as much of ``asyncio.subprocess.Process`` as is needed here."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self.terminate = process.terminate
        self.kill = process.kill

    @property
    def returncode(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.poll()

    async def wait(self) -> int:
        """Waits for its end."""
        return await asyncio.to_thread(self._process.wait)


class Supervisor:
    """Keeps one runtime process alive and hands out the link to its present life."""

    def __init__(self, config: RuntimeSection, log_folder: Path) -> None:
        self._config = config
        self._log_path = log_folder / "runtime.log"
        self._log_start = 0  # where the lines of the present process begin
        self._sockets = SocketFolder()
        self.state: Literal["starting", "ready", "broken", "stopped"] = "starting"
        self.generation = 0
        self.restarts = 0
        self.cards: dict[str, ModelCard] = {}
        """Base models by name and by alias."""
        self.hello: dict[str, Any] = {}
        self.last_death: Death | None = None
        self.started_at = time.time()
        self._link: RuntimeLink | None = None
        self._process: asyncio.subprocess.Process | _Launched | None = None
        self._launched: _Launched | None = None
        self._changed = asyncio.Condition()
        self._failure = ""
        self._failed_starts = 0.0
        self._task: asyncio.Task[None] | None = None
        self._kick = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id of the runtime while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def models(self) -> list[ModelCard]:
        """The base models, each once."""
        return list({card.name: card for card in self.cards.values()}.values())

    def launch(self) -> None:
        """Starts the first process ahead of ``start``, which takes it over. A failure is left for ``start`` to tell."""
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as output, contextlib.suppress(OSError):
            self._log_start = output.tell()
            self._launched = _Launched(
                subprocess.Popen(
                    self._command(1), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            )

    def abandon(self) -> None:
        """Ends what ``launch`` began and ``start`` has not taken over."""
        if self._launched is not None:
            self._launched.kill()
            self._launched = None
            self._sockets.close()

    async def start(self) -> None:
        """Starts the runtime and waits until its models are loaded. Raises RuntimeGone when it cannot start."""
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._task = asyncio.create_task(self._supervise(), name="supervisor")
        async with self._changed:
            await self._changed.wait_for(lambda: self.state != "starting" or self._failed_starts > 0)
        if self.state != "ready":
            raise RuntimeGone(self._failure)

    async def stop(self) -> None:
        """Ends the runtime: SIGTERM, then SIGKILL."""
        self.state = "stopped"
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 10)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._link is not None:
            self._link.close(RuntimeGone("the server is shutting down"))
        self._sockets.close()

    async def ready(self) -> RuntimeLink:
        """The link to the living runtime; waits while it starts. Raises RuntimeGone when it does not come up."""
        if self.state == "ready" and self._link is not None:
            return self._link
        self._kick.set()
        try:
            async with asyncio.timeout(self._config.start_timeout_seconds), self._changed:
                await self._changed.wait_for(lambda: self.state != "starting")
        except TimeoutError:
            raise RuntimeGone(
                f"the runtime did not come up within {self._config.start_timeout_seconds:.0f} s; see {self._log_path}"
            ) from None
        if self.state == "ready" and self._link is not None:
            return self._link
        raise RuntimeGone(self._failure or "the server is shutting down")

    def kill(self, reason: str) -> None:
        """Ends a runtime that does not answer; it is started again."""
        log.error("killing the runtime: %s", reason)
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    # --- the life of the process --------------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while True:
            ooms = oom_kills()
            death = await self._live()
            self.last_death = death = self._explain(death, ooms)
            log.error("%s", death.reason)
            if self._link is not None:
                self._link.close(RuntimeGone(death.reason))
                self._link = None
            was_ready = self.state == "ready"
            if was_ready:
                self._failed_starts = 0.0
                self.restarts += 1
            else:
                self._failed_starts += _MAX_FAILED_STARTS / _MAX_KILLED_STARTS if death.outside else 1.0
            where = f"log: {self._log_path}" if death.told else f"last lines of {self._log_path}: {self.log_tail()}"
            self._failure = f"the runtime cannot start: {death.reason} ({where})"
            broken = self._failed_starts >= _MAX_FAILED_STARTS
            await self._set_state("broken" if broken else "starting")
            if broken:
                self._kick.clear()
                await asyncio.sleep(_COOL_DOWN)
                await self._kick.wait()  # try again when somebody needs it
                self._failed_starts = 0.0
                await self._set_state("starting")
            elif not was_ready:
                await asyncio.sleep(min(0.2 * 2**self._failed_starts, 3.0))

    async def _set_state(self, state: Literal["starting", "ready", "broken"]) -> None:
        async with self._changed:
            self.state = state
            self._changed.notify_all()

    async def _live(self) -> Death:
        """One life of the process, from its start to its end."""
        self.generation += 1
        try:
            process = self._process = await self._begin()
        except OSError as error:
            return Death(0, 127, False, f"cannot run {self._command(1)[0]}: {error.strerror}")
        link = RuntimeLink(self._endpoint(self.generation), self.generation)
        link.open()
        self._link = link
        greeting = asyncio.create_task(self._greet(link))
        ending = asyncio.create_task(process.wait())
        try:
            await asyncio.wait((greeting, ending), return_when=asyncio.FIRST_COMPLETED)
            failed = greeting.exception() if greeting.done() and not greeting.cancelled() else None
            if failed is not None:
                limit = self._config.start_timeout_seconds
                late = f"it was not ready within runtime.start_timeout_seconds = {limit:g} s"
                reason = late if isinstance(failed, TimeoutError) else str(failed)
                self.kill(f"its greeting failed: {reason}")
                return Death(process.pid, await ending, False, reason, told=isinstance(failed, RuntimeFault))
            elif not ending.done():
                await self._set_state("ready")
                log.info("runtime %d is ready: %s", process.pid, ", ".join(card.name for card in self.models))
                await self._watch(link, ending)
            code = await ending
            return Death(process.pid, code, False, "")
        finally:
            greeting.cancel()
            if not ending.done():
                ending.cancel()

    def _endpoint(self, generation: int) -> str:
        return f"ipc://{self._sockets.path}/runtime-{generation}.sock"

    def _command(self, generation: int) -> list[str]:
        command = self._config.command or [self._config.python or sys.executable, "-m", "tinker_backend.runtime"]
        options = ["--engine", str(self._config.engine), "--endpoint", self._endpoint(generation)]
        return [*command, *options, "--parent", str(os.getpid())]

    async def _begin(self) -> asyncio.subprocess.Process | _Launched:
        if self._launched is not None:
            launched, self._launched = self._launched, None
            return launched
        with self._log_path.open("ab") as output:
            self._log_start = output.tell()
            return await asyncio.create_subprocess_exec(
                *self._command(self.generation),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    async def _greet(self, link: RuntimeLink) -> None:
        hello = await link.call("hello", self._config.start_timeout_seconds)
        self.hello = {key: value for key, value in hello.items() if key != "models"}
        cards: dict[str, ModelCard] = {}
        for card in hello["models"]:
            for name in (card.name, *card.aliases):
                cards.setdefault(name, card)
        self.cards = cards

    async def _watch(self, link: RuntimeLink, ending: asyncio.Task[int]) -> None:
        while not ending.done():
            await asyncio.wait((ending,), timeout=_PING_SECONDS)
            if ending.done():
                return
            with contextlib.suppress(TimeoutError, RuntimeFault, RuntimeGone):
                await link.call("ping", _PING_SECONDS)
            silence = time.monotonic() - link.heard_at
            if silence > _SILENCE_SECONDS:
                self.kill(f"no sign of life for {silence:.0f} s")

    def _explain(self, death: Death, ooms: int) -> Death:
        if death.reason:
            return death
        if death.code >= 0:
            return Death(death.pid, death.code, False, f"the runtime (pid {death.pid}) exited with code {death.code}")
        name = signal.Signals(-death.code).name
        out_of_memory = death.code == -signal.SIGKILL and oom_kills() > ooms
        reason = f"the runtime (pid {death.pid}) was ended by {name}"
        if out_of_memory:
            reason += " because the memory of this machine or container ran out"
        return Death(death.pid, death.code, death.code == -signal.SIGKILL and not out_of_memory, reason)

    def log_tail(self, lines: int = 8) -> str:
        """The last lines that the present process wrote."""
        try:
            with self._log_path.open("rb") as file:
                file.seek(max(self._log_start, file.seek(0, os.SEEK_END) - 4096))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return "(none)"
        return " | ".join(line.strip() for line in text.splitlines()[-lines:] if line.strip()) or "(none)"
