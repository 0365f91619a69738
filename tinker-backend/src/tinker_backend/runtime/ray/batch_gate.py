"""Keeps apart what one engine must not compute in one batch: weights versions, and adapters from none on unsafe vLLM."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager

Switch = Callable[[Hashable], Awaitable[None]]


class BatchGate:
    """Lets requests of one kind in together. Another kind waits until they have left, and is then let in first.

    ``switch`` is awaited with the new kind while nothing runs; when it raises, the requests that wait for it raise too.
    """

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._kind: Hashable = None
        self._inside = 0
        self._waiting: deque[Hashable] = deque()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def enter(self, kind: Hashable) -> AsyncIterator[None]:
        """The time of one request of a kind."""
        async with self._changed:
            if self._waiting or kind != self._kind:
                await self._queue(kind)
            self._inside += 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    async def _queue(self, kind: Hashable) -> None:
        self._waiting.append(kind)
        try:
            # First in the queue: either the present kind goes on, or the engine is empty and changes over.
            await self._changed.wait_for(lambda: self._waiting[0] == kind and (kind == self._kind or self._inside == 0))
            if kind != self._kind:
                self._kind = None
                await self._switch(kind)
                self._kind = kind
        finally:
            self._waiting.remove(kind)
            self._changed.notify_all()
