"""The order of the requests of one training client."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from ._loop import LOOP


class Turn:
    """Ids ``first .. first + count - 1``, reserved at call time."""

    def __init__(self, turns: Turns, first: int, count: int) -> None:
        self._turns = turns
        self.first = first
        self.count = count
        self.finished = False

    @property
    def seq_ids(self) -> range:
        """Wire ids; the first request of a client has 1."""
        return range(self.first + 1, self.first + 1 + self.count)

    async def __aenter__(self) -> Turn:
        await self._turns.wait_for(self)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Let the next turn begin. Must run on the loop of the SDK; the second call does nothing."""
        if not self.finished:
            self.finished = True
            self._turns.advance()

    def finish_soon(self, _: object = None) -> None:
        """The same from any thread: covers work that was cancelled before it could run."""
        LOOP.loop().call_soon_threadsafe(self.finish)


class Turns:
    """A turn begins when all before it have ended, however they ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reserved = 0
        self._queue: deque[Turn] = deque()
        self._changed: dict[int, asyncio.Event] = {}
        self._poison: BaseException | None = None

    def reserve(self, count: int = 1) -> Turn:
        """Take the next ids, in the order of the calls; any thread."""
        with self._lock:
            turn = Turn(self, self._reserved, count)
            self._reserved += count
            self._queue.append(turn)
            return turn

    async def wait_for(self, turn: Turn) -> None:
        while not turn.finished and self._current() is not turn:
            event = self._changed.setdefault(turn.first, asyncio.Event())
            event.clear()
            await event.wait()
        self._changed.pop(turn.first, None)
        self.check()

    def poison(self, error: BaseException) -> None:
        """Refuse all turns that have not begun: ids that the server waits for will never be sent."""
        if self._poison is None:
            self._poison = error

    def check(self) -> None:
        """Raise RuntimeError if a request that cannot be skipped has failed."""
        if self._poison is not None:
            raise RuntimeError(
                f"a previous request failed ({self._poison}), and the requests after it cannot be sent; "
                "create a new training client, e.g. from the last checkpoint"
            ) from self._poison

    def advance(self) -> None:
        with self._lock:
            while self._queue and self._queue[0].finished:
                self._queue.popleft()
        current = self._current()
        if current is not None and current.first in self._changed:
            self._changed[current.first].set()

    def _current(self) -> Turn | None:
        with self._lock:
            return self._queue[0] if self._queue else None
