"""State of a session: requests in the order of their arrival, who waits for each, and their answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

from rock.model_service.messages import ModelRequest, SessionEnd

LAGGING_DISCONNECT_SECONDS = 0.05
"""How long a second copy of a request waits for the news that the client of the first copy has gone."""


class QueueError(Exception):
    """Something that the caller asked of the queue cannot be done. ``status`` is the HTTP status that fits."""

    status = 400


class SessionClosed(QueueError):
    """The session has ended; no request can be answered any more."""

    status = 410


class AnswerDeadline(QueueError):
    """No answer came before the deadline of a parked request."""

    status = 504


class UnknownIndex(QueueError):
    status = 404


class AnswerConflict(QueueError):
    """The request has another answer already."""

    status = 409


@dataclass(eq=False, slots=True)
class ParkedRequest:
    """A request of the agent and what became of it."""

    index: int
    body: dict[str, Any]
    headers: dict[str, str]
    received_at: float
    fingerprint: str
    idempotency_key: str | None
    clients: int = 0
    pulled: bool = False
    delivered: bool = False
    answer: dict[str, Any] | None = None
    answer_digest: str = ""
    waiters: list[asyncio.Future[None]] = field(default_factory=list)


class RequestQueue:
    """All requests of one session.

    Not thread safe: every method runs on the event loop of the server, and what happens between two awaits is atomic.

    A request counts as a retry of an earlier one, and shares its index and answer, when it carries the same Idempotency-Key, or
    has the same content and either says so itself (OpenAI clients number their attempts) or the earlier client is gone without
    an answer. Two equal requests of two living clients are two requests: agents may ask for several samples of one prompt.
    """

    def __init__(self) -> None:
        self._records: list[ParkedRequest] = []
        self._end: SessionEnd | None = None
        self._pullers: list[asyncio.Future[None]] = []

    @property
    def count(self) -> int:
        return len(self._records)

    @property
    def waiting(self) -> int:
        return sum(1 for record in self._records if record.answer is None and record.clients > 0)

    @property
    def end(self) -> SessionEnd | None:
        return self._end

    # --- the agent's side -------------------------------------------------------------------------------------------

    async def park(
        self,
        body: dict[str, Any],
        headers: dict[str, str],
        fingerprint: str,
        *,
        idempotency_key: str | None = None,
        is_retry: bool = False,
    ) -> ParkedRequest:
        """Takes a request, or finds the one that it repeats. The caller must ``leave`` the record in the end.

        Raises:
            SessionClosed: the session has ended and no saved answer fits.
        """
        earlier = self._find_earlier(fingerprint, idempotency_key, is_retry)
        if earlier is None and self._twin_with_client(fingerprint):
            await asyncio.sleep(LAGGING_DISCONNECT_SECONDS)
            earlier = self._find_earlier(fingerprint, idempotency_key, is_retry)
        if earlier is not None:
            earlier.clients += 1
            return earlier
        if self._end is not None:
            raise SessionClosed(f"the session has ended ({self._end.reason}); no further request is answered")
        record = ParkedRequest(
            index=len(self._records) + 1,
            body=body,
            headers=headers,
            received_at=time.time(),
            fingerprint=fingerprint,
            idempotency_key=idempotency_key,
            clients=1,
        )
        self._records.append(record)
        self._wake(self._pullers)
        return record

    async def wait_answer(self, record: ParkedRequest, timeout: float) -> dict[str, Any]:
        """Waits until the request has its answer.

        Raises:
            SessionClosed: the session ended first.
            AnswerDeadline: ``timeout`` seconds passed.
        """
        deadline = time.monotonic() + timeout
        while record.answer is None:
            if self._end is not None:
                raise SessionClosed(
                    f"the session ended ({self._end.reason}) before request {record.index} was answered"
                )
            if not await self._sleep_on(record.waiters, deadline):
                raise AnswerDeadline(
                    f"request {record.index} got no answer within {timeout:g} s (deadline --request-timeout of the ModelService)"
                )
        return record.answer

    def leave(self, record: ParkedRequest, *, delivered: bool) -> None:
        """A client stops waiting, with or without the answer."""
        record.clients -= 1
        record.delivered = record.delivered or delivered

    # --- the puller's side ------------------------------------------------------------------------------------------

    async def pull(self, after: int, timeout: float) -> ModelRequest | SessionEnd | None:
        """The unanswered request with the smallest index above ``after``; waits for one up to ``timeout`` seconds.

        Pulling changes nothing but a mark, so a puller that lost a reply asks again with the same ``after``.
        """
        deadline = time.monotonic() + timeout
        while True:
            record = self._next_unanswered(after)
            if record is not None:
                record.pulled = True
                return ModelRequest(record.index, record.body, record.headers, record.received_at, self._abandoned())
            if self._end is not None:
                return self._end
            if not await self._sleep_on(self._pullers, deadline):
                return None

    def answer(self, index: int, answer: dict[str, Any]) -> bool:
        """Stores the answer of a request and wakes its clients. False: it had this very answer already.

        Raises:
            UnknownIndex: no such request.
            AnswerConflict: it has a different answer.
        """
        record = self.record(index)
        digest = hashlib.sha256(json.dumps(answer, sort_keys=True).encode()).hexdigest()
        if record.answer is not None:
            if record.answer_digest == digest:
                return False
            raise AnswerConflict(f"request {index} has a different answer already; an answer cannot be replaced")
        record.answer, record.answer_digest = answer, digest
        self._wake(record.waiters)
        return True

    def record(self, index: int) -> ParkedRequest:
        """The request with this index. Raises UnknownIndex."""
        if not 1 <= index <= len(self._records):
            known = f"requests 1 to {len(self._records)}" if self._records else "no requests yet"
            raise UnknownIndex(f"request index {index} does not exist; the session has {known}")
        return self._records[index - 1]

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self, reason: str, exit_code: int | None) -> bool:
        """Ends the session; parked requests and pulls learn of it at once. False: it had ended before."""
        if self._end is not None:
            return False
        self._end = SessionEnd(reason, exit_code, len(self._records))
        self._wake(self._pullers)
        for record in self._records:
            self._wake(record.waiters)
        return True

    # --- inside -----------------------------------------------------------------------------------------------------

    def _find_earlier(self, fingerprint: str, idempotency_key: str | None, is_retry: bool) -> ParkedRequest | None:
        for record in reversed(self._records):
            if idempotency_key is not None:
                if record.idempotency_key == idempotency_key and not self._is_dropped(record):
                    return record
                continue
            if record.fingerprint != fingerprint or self._is_dropped(record):
                continue
            if is_retry or (record.clients == 0 and not record.delivered):
                return record
        return None

    def _twin_with_client(self, fingerprint: str) -> bool:
        return any(r.fingerprint == fingerprint and r.clients > 0 and r.answer is None for r in self._records)

    @staticmethod
    def _is_dropped(record: ParkedRequest) -> bool:
        """Nobody saw it before its client went away. A retry gets a new index, since pullers may be past the old one."""
        return record.answer is None and record.clients == 0 and not record.pulled

    def _next_unanswered(self, after: int) -> ParkedRequest | None:
        if self._end is not None:
            return None
        for record in self._records[max(after, 0) :]:
            if record.answer is None and not self._is_dropped(record):
                return record
        return None

    def _abandoned(self) -> tuple[int, ...]:
        return tuple(r.index for r in self._records if r.answer is None and r.pulled and r.clients == 0)

    @staticmethod
    def _wake(waiters: list[asyncio.Future[None]]) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        waiters.clear()

    @staticmethod
    async def _sleep_on(waiters: list[asyncio.Future[None]], deadline: float) -> bool:
        """Sleeps until woken (True) or the deadline (False)."""
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        try:
            async with asyncio.timeout(remaining):
                await waiter
        except TimeoutError:
            return False
        finally:
            if waiter in waiters:
                waiters.remove(waiter)
        return True
