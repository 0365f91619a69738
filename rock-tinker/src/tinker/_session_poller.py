"""One long poll for all samples of a sampling client, instead of one a sample."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from . import _pace
from ._errors import APIConnectionError, APIStatusError, BadRequestError, TinkerError
from ._http import Call
from ._pools import PoolKind
from ._promise import Expected, Promise, cancelled_on_server
from ._queue_state import QueueStateObserver
from ._retry import is_retryable
from .types.future import (
    FutureFinished,
    FuturesRetrieveRequest,
    FuturesRetrieveResponse,
    SamplingSessionFuturesTarget,
    UntypedAPIFuture,
)

if TYPE_CHECKING:
    from ._holder import Holder

T = TypeVar("T")
_BAD_REQUEST_RETRIES = 3
_RETRY_SECONDS = 1.0


class SessionPoller:
    """Asks ``retrieve_futures`` which samples are ready while somebody waits for one."""

    def __init__(self, holder: Holder, sampling_session_id: str, clone_id: int) -> None:
        self._holder = holder
        self._target = SamplingSessionFuturesTarget(sampling_session_id=sampling_session_id, cloned_sampler_id=clone_id)
        self._cursor = 0
        self._waiting: dict[str, asyncio.Future[int | None]] = {}
        self._early: dict[str, int | None] = {}  # completions that came before their waiter
        self._retrieved: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._failure: TinkerError | None = None
        self._bad_requests = 0

    async def result(
        self, future: UntypedAPIFuture, expected: Expected[T], roundtrip: float, observer: QueueStateObserver
    ) -> T:
        """Wait until the sample is ready, then fetch its result.

        Raises TinkerError if polling has failed for good.
        """
        promise_of_fetch: Promise[T] = Promise(self._holder, future, expected)
        async with cancelled_on_server(self._holder, promise_of_fetch):
            size = await self._completion(future.request_id)
            promise = Promise(
                self._holder,
                future,
                expected,
                roundtrip=roundtrip,
                observer=observer,
                allow_metadata_only=size is None,
                reserved_bytes=size or 0,
            )
            try:
                return await promise.result()
            finally:
                self._retrieved.append(future.request_id)
                if not self._waiting:
                    await self._acknowledge()

    async def _completion(self, request_id: str) -> int | None:
        if self._failure is not None:
            raise self._failure
        if request_id in self._early:
            return self._early.pop(request_id)
        waiter: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = waiter
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            return await waiter
        finally:
            self._waiting.pop(request_id, None)

    async def _poll(self) -> None:
        while self._waiting:
            try:
                await self._poll_once(timeout=None)
                self._bad_requests = 0
            except (APIStatusError, APIConnectionError) as error:
                if isinstance(error, BadRequestError) and self._bad_requests < _BAD_REQUEST_RETRIES:
                    self._bad_requests += 1
                elif not is_retryable(error):
                    self._fail(error)
                    return
                await _pace.sleep(_RETRY_SECONDS)
            except TinkerError as error:
                self._fail(error)
                return

    async def _acknowledge(self) -> None:
        """Nobody waits any more: tell the server which results it may delete."""
        with contextlib.suppress(TinkerError):  # the server drops them by age anyway
            await self._poll_once(timeout=0)

    async def _poll_once(self, timeout: float | None) -> None:
        retrieved = list(self._retrieved)
        request = FuturesRetrieveRequest(
            target=self._target, prev_cursor=self._cursor, timeout=timeout, retrieved_request_ids=retrieved
        )
        call = Call("POST", "retrieve_futures", request, timeout=45 if timeout is None else 5, retries=0)
        answer = await self._holder.fetch(PoolKind.RETRIEVE_FUTURES, call, FuturesRetrieveResponse, retry=False)
        del self._retrieved[: len(retrieved)]
        self._cursor = answer.cursor
        for completion in answer.completions:
            size = completion.response_payload_uncompressed_size if isinstance(completion, FutureFinished) else None
            waiter = self._waiting.get(completion.request_id)
            if waiter is None:
                self._early[completion.request_id] = size
            elif not waiter.done():
                waiter.set_result(size)

    def _fail(self, error: Exception) -> None:
        self._failure = TinkerError(f"polling for samples failed: {error}")
        self._failure.__cause__ = error
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(self._failure)
