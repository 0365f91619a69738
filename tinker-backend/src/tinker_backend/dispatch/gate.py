"""A gate that many calls share, and that a suspect passes alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """``shared`` lets any number through; ``alone`` waits until it is empty and keeps others out meanwhile.

    An operation that was under way when the runtime died twice runs alone, so that the next death tells which
    operation kills the runtime, and innocent ones are not failed with it.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._alone = False
        self._waiting_alone = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Enter together with others."""
        if self._alone or self._waiting_alone:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._alone and not self._waiting_alone)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if self._waiting_alone:
                async with self._changed:
                    self._changed.notify_all()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Enter when nobody else is inside."""
        self._waiting_alone += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._alone and self._inside == 0)
                self._alone = True
        finally:
            self._waiting_alone -= 1
        try:
            yield
        finally:
            async with self._changed:
                self._alone = False
                self._changed.notify_all()
