"""The order of the requests of one training client."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from ._loop import LOOP

T = TypeVar("T")


class Turn:
    """A place in the order, taken at call time. Its ``count`` ids are given out when the turn begins."""

    def __init__(self, turns: Turns, count: int) -> None:
        self._turns = turns
        self._sending: asyncio.Future[Any] | None = None
        self.first: int | None = None
        self.count = count
        self.sent = False
        """Whether a request with one of the ids may have left. If none has, the next turn gets the same ids."""
        self.finished = False

    @property
    def seq_ids(self) -> range:
        """Wire ids; the first request of a client has 1. Known once the turn has begun."""
        if self.first is None:
            raise RuntimeError("a turn has ids once it has begun")
        return range(self.first, self.first + self.count)

    async def __aenter__(self) -> Turn:
        await self._turns.wait_for(self)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.finish()

    async def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of sending. Who cancels stops waiting; the sending itself ends first, then the turn does.

        A request that was cut off on its way would leave an id that the server waits for.
        """
        self._sending = asyncio.ensure_future(work)
        return await asyncio.shield(self._sending)

    def finish(self, _: object = None) -> None:
        """Let the next turn begin. Must run on the loop of the SDK; the second call does nothing."""
        if self._sending is not None and not self._sending.done():
            self._sending.add_done_callback(self.finish)
        elif not self.finished:
            self.finished = True
            self._turns.advance(self)

    def finish_soon(self, _: object = None) -> None:
        """The same from any thread: covers work that was cancelled before it could run."""
        LOOP.loop().call_soon_threadsafe(self.finish)


class Turns:
    """A turn begins when all before it have ended, however they ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next_id = 1
        self._queue: deque[Turn] = deque()
        self._changed: dict[Turn, asyncio.Event] = {}
        self._poison: BaseException | None = None

    def reserve(self, count: int = 1) -> Turn:
        """Take the next place, in the order of the calls; any thread."""
        with self._lock:
            turn = Turn(self, count)
            self._queue.append(turn)
            return turn

    async def wait_for(self, turn: Turn) -> None:
        while not turn.finished and self._current() is not turn:
            event = self._changed.setdefault(turn, asyncio.Event())
            event.clear()
            await event.wait()
        self._changed.pop(turn, None)
        if turn.finished:
            raise asyncio.CancelledError("cancelled before its turn came")
        self.check()
        turn.first = self._next_id
        self._next_id += turn.count

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

    def advance(self, ended: Turn) -> None:
        if ended.first is not None and not ended.sent:
            self._next_id = ended.first
        with self._lock:
            while self._queue and self._queue[0].finished:
                self._queue.popleft()
        current = self._current()
        if current is not None and current in self._changed:
            self._changed[current].set()

    def _current(self) -> Turn | None:
        with self._lock:
            return self._queue[0] if self._queue else None
