"""Sandboxes that are started ahead of their use, and used once."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from rock.sdk import Sandbox

_LOG = logging.getLogger("rock.code_service")


class SandboxPool:
    """Keeps `size` fresh sandboxes ready.

    Args:
        make: a sandbox that is not started yet.
    """

    def __init__(self, make: Callable[[], Sandbox], size: int) -> None:
        self.size = size
        self._make = make
        self._ready: deque[asyncio.Task[Sandbox]] = deque()
        self._ends: set[asyncio.Task[None]] = set()

    def fill(self) -> None:
        """Begins to start what is missing."""
        while len(self._ready) < self.size:
            self._ready.append(asyncio.create_task(self._start()))

    async def take(self) -> Sandbox:
        """A sandbox that nobody used; give it back with `discard`.

        Raises:
            RockError: it did not start.
        """
        start = self._ready.popleft() if self._ready else asyncio.create_task(self._start())
        self.fill()
        try:
            return await start
        except asyncio.CancelledError:
            self._background(self._end(start))
            raise

    async def take_new(self) -> Sandbox:
        """A sandbox that is started now."""
        return await self._start()

    def discard(self, sandbox: Sandbox) -> None:
        """Removes a used sandbox, in the background."""
        self._background(sandbox.close())

    async def close(self) -> None:
        """Removes every sandbox."""
        while self._ready:
            await self._end(self._ready.popleft())
        await asyncio.gather(*self._ends, return_exceptions=True)

    async def _start(self) -> Sandbox:
        sandbox = self._make()
        try:
            await sandbox.start()
        except BaseException:
            await asyncio.shield(sandbox.close())
            raise
        return sandbox

    async def _end(self, start: asyncio.Task[Sandbox]) -> None:
        start.cancel()  # one that has not come up yet removes itself
        for outcome in await asyncio.gather(start, return_exceptions=True):
            if isinstance(outcome, Sandbox):
                await outcome.close()
            elif isinstance(outcome, Exception):
                _LOG.warning("a sandbox did not start: %s", outcome)

    def _background(self, end: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(end)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)
