"""Limits on what is under way at once: bytes, and the pause after the server pushed back."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from . import _pace


class ByteBudget:
    """Admits while the balance is not negative, so one item may overshoot and no item is too big for ever."""

    def __init__(self, limit: int) -> None:
        self._balance = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        await self.acquire(size)
        try:
            yield
        finally:
            self.release(size)

    async def acquire(self, size: int) -> None:
        while self._balance < 0 or (self._waiting and not self._waiting[0].done()):
            ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(ticket)
            try:
                await ticket
            finally:
                self._waiting.remove(ticket)
            if self._balance >= 0:
                break
        self._balance -= size
        self._wake()

    def release(self, size: int) -> None:
        self._balance += size
        self._wake()

    def _wake(self) -> None:
        if self._balance >= 0 and self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)


class Backpressure:
    """The pause that all samples of a holder make after a 429, and the caution of the seconds after it."""

    CAUTION_SECONDS = 10.0
    COST_FACTOR = 20

    def __init__(self) -> None:
        self._paused_until = 0.0
        self._last_push_back = float("-inf")
        self._careful = asyncio.Semaphore(10)

    def push_back(self, seconds: float) -> None:
        now = time.monotonic()
        self._last_push_back = now
        self._paused_until = max(self._paused_until, now + seconds)

    @property
    def is_recent(self) -> bool:
        return time.monotonic() - self._last_push_back < self.CAUTION_SECONDS

    async def wait(self) -> None:
        """Until the pause is over."""
        while (left := self._paused_until - time.monotonic()) > 0:
            await _pace.sleep(left)

    @asynccontextmanager
    async def caution(self) -> AsyncIterator[int]:
        """Hold a scarce slot while a push-back is recent; gives the factor for byte costs."""
        if not self.is_recent:
            yield 1
            return
        async with self._careful:
            yield self.COST_FACTOR
