"""Which samples of a sampling client have ended: what ``retrieve_futures`` reports."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from ..ledger import Ledger, tables
from .promises import Promise

CLONE_STRIDE = 1_000_000_000
"""A clone of a sampling client numbers its requests from clone_id times this."""
_KEPT = 65536
_IDLE_SECONDS = 3600.0


def _beginning() -> int:
    """The first number of a list: the time in microseconds, above every number that an earlier life of the server gave."""
    return time.time_ns() // 1000


@dataclass(eq=False)
class Completions:
    """The ended samples of one clone of a sampling client, numbered one by one."""

    first: int = field(default_factory=_beginning)
    entries: deque[dict[str, Any]] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    filling: asyncio.Future[None] | None = None
    asked_at: float = 0.0

    @property
    def cursor(self) -> int:
        """Number of the newest entry, or the one before the first."""
        return self.first + len(self.entries) - 1

    def append(self, entry: dict[str, Any]) -> None:
        """Adds an entry and wakes who waits."""
        self.entries.append(entry)
        while len(self.entries) > _KEPT:
            self.entries.popleft()
            self.first += 1
        self.arrived.set()

    def after(self, cursor: int) -> list[dict[str, Any]]:
        """Entries after the cursor; what is at or before it is forgotten."""
        while self.entries and self.first <= cursor:
            self.entries.popleft()
            self.first += 1
        return list(self.entries)


class CompletionBook:
    """The lists of all clones that ask. A list begins with the first question, with what the ledger knows."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lists: dict[tuple[str, int], Completions] = {}

    def release(self) -> None:
        """Ends the long polls that wait."""
        for completions in self._lists.values():
            completions.arrived.set()

    async def of(self, sampler_id: str, clone: int) -> Completions:
        """The list of a clone. Raises LedgerError."""
        key = (sampler_id, clone)
        found = self._lists.get(key)
        if found is None:
            found = self._lists[key] = Completions()
            found.filling = asyncio.ensure_future(self._fill(key, found))
        found.asked_at = time.time()
        if found.filling is not None:
            await asyncio.shield(found.filling)
        return found

    def note(self, promise: Promise) -> None:
        """A promise has ended."""
        if promise.kind == "sample" and (found := self._lists.get(_key(promise))) is not None:
            found.append(_entry(promise.request_id, promise.failure is None, promise.size))

    def asked_at(self, promise: Promise) -> float:
        """When the client of a sample last asked for its clone's list; 0 for never."""
        found = self._lists.get(_key(promise))
        return 0.0 if found is None else found.asked_at

    def forget_idle(self) -> None:
        """Drops the lists that nobody has asked for in a long time; a later question begins a new one."""
        horizon = time.time() - _IDLE_SECONDS
        for key in [key for key, found in self._lists.items() if found.asked_at < horizon]:
            del self._lists[key]

    async def _fill(self, key: tuple[str, int], found: Completions) -> None:
        """Puts what ended earlier, perhaps in another life of the server, before what has ended meanwhile."""
        sampler_id, clone = key
        ops = tables.operations.c
        query = (
            sa.select(ops.request_id, ops.state, sa.func.length(ops.result))
            .where(
                ops.target == sampler_id,
                ops.seq_id >= clone * CLONE_STRIDE,
                ops.seq_id < (clone + 1) * CLONE_STRIDE,
                ops.state.in_(("done", "failed")),
                ops.result.is_not(None),
            )
            .order_by(ops.finished_at.desc())
            .limit(_KEPT)
        )
        try:
            rows = await self._ledger.run(lambda connection: list(connection.execute(query)))
        except BaseException:
            self._lists.pop(key, None)
            raise
        known = {entry["request_id"] for entry in found.entries}
        for request_id, state, size in rows:  # the newest first
            if request_id not in known:
                found.entries.appendleft(_entry(request_id, state == "done", size))
        found.filling = None


def _key(promise: Promise) -> tuple[str, int]:
    return (promise.target, promise.seq_id // CLONE_STRIDE)


def _entry(request_id: str, finished: bool, size: int) -> dict[str, Any]:
    if not finished:
        return {"state": "failed", "request_id": request_id}
    return {"state": "finished", "request_id": request_id, "response_payload_uncompressed_size": size}
