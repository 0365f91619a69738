"""Promises: what a client holds while its operation waits or runs, and the result that it fetches, perhaps twice.

Pending promises live in memory. Finished ones stay in memory within a budget and in the ledger for as long as the
configuration says; a long poll wakes by event.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..config import LimitSection
from ..errors import Expired, Forbidden, NotFound, OperationFailure
from ..ledger import Ledger, tables
from ..runtime import messages
from ..server.principal import Principal

_MEMORY_SECONDS = 300.0
"""How long a finished result stays in memory; later it is read from the ledger."""
_DELIVERED_SECONDS = 20.0
"""The same for one that its client has fetched, and may ask for again when the answer was lost on its way."""
_OVERHEAD = 4096
"""Bytes of memory that a finished promise takes besides its result, about."""

# Made once: putting a statement together costs more than the database's work on it.
_INSERT = sa.insert(tables.operations)
_SETTLE = sa.update(tables.operations).where(tables.operations.c.request_id == sa.bindparam("key"))


@dataclass(eq=False)
class Promise:
    """One accepted operation as its client sees it."""

    request_id: str
    owner: str
    kind: str
    target: str
    seq_id: int
    created_at: float = field(default_factory=time.time)
    result: Any = None
    failure: OperationFailure | None = None
    finished_at: float | None = None
    size: int = 0
    saved: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """More fields of the promise as it goes to the client."""
    waiters: set[asyncio.Future[None]] = field(default_factory=set)
    asked_at: float = 0.0
    """When a client last asked for the result."""

    @property
    def done(self) -> bool:
        """Whether there is a result or a failure."""
        return self.finished_at is not None

    async def wait(self, seconds: float) -> bool:
        """Waits for the end, at most so long. Returns ``done``."""
        self.asked_at = time.time()
        if self.done or seconds <= 0:
            return self.done
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=seconds)
        finally:
            self.waiters.discard(waiter)
            waiter.cancel()
        return self.done


@dataclass(frozen=True)
class Tokens:
    """What an operation consumed and made, for the usage figures."""

    read: int = 0
    written: int = 0
    cached: int = 0


class PromiseBook:
    """All promises."""

    def __init__(self, ledger: Ledger, limits: LimitSection) -> None:
        self._ledger = ledger
        self._limits = limits
        self._promises: dict[str, Promise] = {}
        self._finished: OrderedDict[str, Promise] = OrderedDict()
        self._delivered: OrderedDict[str, float] = OrderedDict()
        """When results in memory were fetched, in that order."""
        self._bytes = 0
        self.listeners: list[Callable[[Promise], None]] = []
        self.counts: dict[tuple[str, str], int] = {}
        """Finished operations by (kind, ok|failed)."""
        self.durations: deque[tuple[str, float]] = deque(maxlen=4096)

    @property
    def pending(self) -> int:
        """Promises without a result."""
        return len(self._promises) - len(self._finished)

    @property
    def cached_bytes(self) -> int:
        """Bytes of results held in memory."""
        return self._bytes

    def add(self, promise: Promise) -> None:
        """Makes a promise known."""
        self._promises[promise.request_id] = promise

    def forget(self, promise: Promise) -> None:
        """Takes back a promise that was never given."""
        self._promises.pop(promise.request_id, None)

    def known(self, request_id: str) -> Promise | None:
        """The promise, if it is in memory."""
        return self._promises.get(request_id)

    def delivered(self, promise: Promise) -> None:
        """The result is on its way to the client."""
        if promise.request_id in self._finished:
            self._delivered[promise.request_id] = time.time()
            self._delivered.move_to_end(promise.request_id)

    async def get(self, request_id: str, principal: Principal) -> Promise:
        """The promise of the caller. Raises NotFound, Forbidden, Expired."""
        promise = self._promises.get(request_id) or await self._read(request_id)
        if promise.owner != principal.owner:
            raise Forbidden(f"request_id {request_id!r} belongs to another API key")
        return promise

    def settle(
        self, promise: Promise, result: Any, tokens: Tokens = Tokens(), started_at: float | None = None, *records: Any
    ) -> None:
        """Ends a promise with a result or an OperationFailure, wakes who waits, and records it.

        ``records`` are further ledger jobs that must be committed together with the result.
        """
        if promise.done:
            return
        failure = result if isinstance(result, OperationFailure) else None
        packed = messages.pack({"message": failure.message, "category": failure.category} if failure else result)
        promise.failure, promise.result = failure, None if failure else result
        promise.finished_at = time.time()
        promise.size = len(packed)
        state = "failed" if failure else "done"
        outcome = (promise.kind, "failed" if failure else "ok")
        self.counts[outcome] = self.counts.get(outcome, 0) + 1
        self.durations.append((promise.kind, promise.finished_at - promise.created_at))
        self._finished[promise.request_id] = promise
        self._bytes += promise.size + _OVERHEAD
        for waiter in promise.waiters:
            if not waiter.done():
                waiter.set_result(None)
        for listener in self.listeners:
            listener(promise)
        values = {
            "key": promise.request_id,
            "state": state,
            "result": packed,
            "started_at": started_at,
            "finished_at": promise.finished_at,
            "input_tokens": tokens.read,
            "output_tokens": tokens.written,
            "cached_tokens": tokens.cached,
        }

        def write(connection: Connection) -> None:
            for record in records:
                record(connection)
            connection.execute(_SETTLE, values)
            promise.saved = True

        self._ledger.post(write)
        self.evict()

    def release(self) -> None:
        """Ends the long polls that wait. Their clients ask again, perhaps the next server."""
        for promise in self._promises.values():
            for waiter in promise.waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def evict(self) -> None:
        """Drops the oldest results beyond the budget of time or memory, as far as the ledger has them."""
        fetched = time.time() - _DELIVERED_SECONDS
        while self._delivered:
            request_id, at = next(iter(self._delivered.items()))
            if at >= fetched or not self._finished[request_id].saved:
                break
            self._drop(request_id)
        horizon = time.time() - _MEMORY_SECONDS
        budget = self._limits.result_cache_bytes
        while self._finished:
            request_id, promise = next(iter(self._finished.items()))
            if (promise.finished_at or 0) >= horizon and self._bytes <= budget:
                return
            if not promise.saved and self._bytes <= 2 * budget:
                return
            self._drop(request_id)

    def _drop(self, request_id: str) -> None:
        promise = self._finished.pop(request_id)
        self._delivered.pop(request_id, None)
        self._promises.pop(request_id, None)
        self._bytes -= promise.size + _OVERHEAD

    async def _read(self, request_id: str) -> Promise:
        def select(connection: Connection) -> Any:
            query = sa.select(tables.operations).where(tables.operations.c.request_id == request_id)
            return connection.execute(query).one_or_none()

        row = await self._ledger.run(select)
        if row is None or row.state == "refused":
            raise NotFound(f"request_id {request_id!r} is not known to this server")
        if (known := self._promises.get(request_id)) is not None:
            return known
        if row.state == "pending" or row.result is None:
            raise Expired(f"the result of {request_id!r} is no longer kept; send the request again")
        return promise_from_row(row)


def promise_from_row(row: Any) -> Promise:
    """The promise of a row of ``operations``."""
    promise = Promise(row.request_id, row.owner, row.kind, row.target, row.seq_id, row.created_at)
    if row.state in ("done", "failed"):
        result = messages.unpack(row.result)
        if row.state == "failed":
            promise.failure = OperationFailure(result["message"], result["category"])
        else:
            promise.result = result
        promise.finished_at = row.finished_at
        promise.size = len(row.result)
        promise.saved = True
    return promise


def operation_row(
    promise: Promise, session_id: str, payload: bytes | None, state: str = "pending", tokens: int = 0
) -> dict[str, Any]:
    """The row of a new operation."""
    return {
        "request_id": promise.request_id,
        "target": promise.target,
        "seq_id": promise.seq_id,
        "session_id": session_id,
        "owner": promise.owner,
        "kind": promise.kind,
        "state": state,
        "payload": payload,
        "created_at": promise.created_at,
        "input_tokens": tokens,
        "output_tokens": 0,
        "cached_tokens": 0,
    }


def insertion(row: dict[str, Any]) -> Callable[[Connection], object]:
    """The ledger job that stores a new operation."""
    return lambda connection: connection.execute(_INSERT, row)


def to_json(value: Any) -> str | None:
    """JSON text for a column, None for None."""
    return None if value is None else json.dumps(value)


def from_json(text: str | None) -> Any:
    """What a JSON column holds."""
    return None if text is None else json.loads(text)
