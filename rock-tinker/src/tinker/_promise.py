"""Waiting for the result of an accepted request: the long poll of ``retrieve_future``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import httpx
from google.protobuf.message import DecodeError
from pydantic import BaseModel, ValidationError

from . import _pace
from ._errors import (
    APIConnectionError,
    APIResponseValidationError,
    APIStatusError,
    BadRequestError,
    BillingError,
    RateLimitError,
    RequestFailedError,
    RetryableError,
    TinkerError,
)
from ._http import Call, tell_silence
from ._pools import PoolKind
from ._queue_state import QueueState, QueueStateObserver
from ._retry import BillingPause
from ._settings import logger
from .types.future import FutureRetrieveRequest, RequestErrorCategory, UntypedAPIFuture

if TYPE_CHECKING:
    from ._holder import Holder

T = TypeVar("T")
POLL_TIMEOUT_SECONDS = 45.0
_BAD_REQUEST_RETRIES = 3
_PROTOBUF = "application/x-protobuf"
# A long poll that comes back at once, again and again, is slowed down so that it does not burn both machines.
_FAST_POLL_SECONDS = 0.25
_FAST_POLLS_ALLOWED = 20
_FAST_POLL_PAUSE = 0.25
_QUIET_TRIES = 2


@dataclass(frozen=True)
class Expected(Generic[T]):
    """What the result of a request type looks like: a JSON model or a protobuf decoder."""

    request_type: str
    model: type[BaseModel] | None = None
    decode: Callable[[bytes], T] | None = None


class Promise(Generic[T]):
    """One accepted request.

    Args:
        holder: Connection to poll over.
        future: Answer to the POST.
        expected: Form of the result.
        roundtrip: Seconds that the POST took (reported with the first poll).
        observer: Hears of pauses.
        allow_metadata_only: Whether the server may announce the size of the result first.
        reserved_bytes: Size of the result if known already.
    """

    def __init__(
        self,
        holder: Holder,
        future: UntypedAPIFuture,
        expected: Expected[T],
        *,
        roundtrip: float = 0.0,
        observer: QueueStateObserver | None = None,
        allow_metadata_only: bool = True,
        reserved_bytes: int = 0,
    ) -> None:
        self._holder = holder
        self.request_id = future.request_id
        self.future = future
        self._expected = expected
        self._roundtrip = roundtrip
        self._observer = observer
        self._allow_metadata_only = allow_metadata_only
        self._reserved = reserved_bytes
        self._iteration = 0
        self._backoffs = 0
        self._bad_requests = 0
        self._fast_polls = 0
        self._billing = BillingPause(holder.flags.billing_exception_max_pause_duration_sec)

    async def result(self) -> T:
        """Wait for the result.

        Raises:
            RequestFailedError: The server failed the request.
            RetryableError: The promise expired; the request may be submitted again.
            ValueError: The server does not know the promise, or the result has the wrong form.
        """
        if self._reserved:
            await self._holder.response_bytes.acquire(self._reserved)
        try:
            while True:
                started = time.monotonic()
                response = await self._poll()
                if response is not None:
                    done, value = await self._read(response)
                    if done:
                        return value  # type: ignore[return-value]
                await self._slow_down(time.monotonic() - started)
        finally:
            if self._reserved:
                self._holder.response_bytes.release(self._reserved)

    def _call(self) -> Call:
        headers = {
            "x-stainless-raw-response": "raw",
            "X-Tinker-Request-Iteration": str(self._iteration),
            "X-Tinker-Request-Type": self._expected.request_type,
        }
        if self._iteration == 0:
            headers["X-Tinker-Create-Promise-Roundtrip-Time"] = str(self._roundtrip)
        if self._expected.decode is not None:
            headers["Accept"] = _PROTOBUF
        body = FutureRetrieveRequest(request_id=self.request_id, allow_metadata_only=self._allow_metadata_only)
        return Call("POST", "retrieve_future", body, headers=headers, timeout=POLL_TIMEOUT_SECONDS, retries=0)

    async def _poll(self) -> httpx.Response | None:
        """One poll; None means: again."""
        call = self._call()
        self._iteration += 1
        try:
            response: httpx.Response = await self._holder.send(PoolKind.RETRIEVE_PROMISE, call, retry=False)
        except APIStatusError as error:
            await self._on_status(error)
        except APIConnectionError as error:
            if self._backoffs >= _QUIET_TRIES:
                tell_silence(self._holder.base_url, error, "waiting until it is back")
            await self._back_off()
        else:
            self._backoffs = 0
            return response
        return None

    async def _on_status(self, error: APIStatusError) -> None:
        status = error.status_code
        if status == 408:
            self._observe(error.body)
        elif status == 410:
            raise RetryableError(f"the promise {self.request_id} has expired: {error}") from error
        elif isinstance(error, RateLimitError):
            await self._back_off()
        elif isinstance(error, BillingError):
            await self._billing.wait_or_raise(error)
        elif isinstance(error, BadRequestError) and self._bad_requests < _BAD_REQUEST_RETRIES:
            self._bad_requests += 1
        elif status < 500:
            raise ValueError(f"the result of request {self.request_id} cannot be retrieved: {error}") from error

    async def _back_off(self) -> None:
        delay = _pace.OUTER_RETRY.delay(self._backoffs)
        self._backoffs += 1
        await _pace.sleep(delay)

    async def _slow_down(self, seconds: float) -> None:
        self._fast_polls = self._fast_polls + 1 if seconds < _FAST_POLL_SECONDS else 0
        if self._fast_polls > _FAST_POLLS_ALLOWED:
            await _pace.sleep(_FAST_POLL_PAUSE)

    def _observe(self, body: object) -> None:
        if self._observer is not None and isinstance(body, dict) and "queue_state" in body:
            state = QueueState.parse(body["queue_state"])
            self._observer.on_queue_state_change(state, body.get("queue_state_reason"))

    async def _read(self, response: httpx.Response) -> tuple[bool, T | None]:
        expected = self._expected
        if _PROTOBUF in response.headers.get("content-type", ""):
            if expected.decode is None:
                raise ValueError(f"{expected.request_type}: the server sent protobuf where JSON was expected")
            try:
                return True, expected.decode(response.content)
            except DecodeError as error:
                text = f"{expected.request_type}: the result is no protobuf: {error}"
                raise APIResponseValidationError(response, None, text) from error
        try:
            body: Any = response.json()
        except ValueError as error:
            raise APIResponseValidationError(response, response.text, f"result is not JSON: {error}") from error
        if isinstance(body, dict):
            if body.get("type") == "try_again":
                logger.warning("request %s has no result yet: %s", self.request_id, body.get("queue_state_reason"))
                self._observe(body)
                return False, None
            if body.get("status") == "complete_metadata":
                await self._reserve(int(body.get("response_payload_size") or 0))
                return False, None
            if "error" in body:
                raise RequestFailedError(str(body["error"]), self.request_id, _category(body.get("category")))
        if expected.model is None:
            raise ValueError(f"{expected.request_type}: the server sent JSON where protobuf was expected")
        try:
            return True, expected.model.model_validate(body)  # type: ignore[return-value]
        except ValidationError as error:
            raise APIResponseValidationError(response, body, f"{expected.request_type}: {error}") from error

    async def _reserve(self, size: int) -> None:
        """The result is ready and has this size: take that much of the budget before fetching it."""
        if not self._allow_metadata_only:
            raise TinkerError(f"request {self.request_id}: the server sent metadata where the result was asked for")
        self._allow_metadata_only = False
        if size > 0:
            await self._holder.response_bytes.acquire(size)
            self._reserved = size


def _category(value: object) -> RequestErrorCategory:
    try:
        return RequestErrorCategory(str(value))
    except ValueError:
        return RequestErrorCategory.Unknown


@asynccontextmanager
async def cancelled_on_server(holder: Holder, promise: Promise[Any]) -> AsyncIterator[None]:
    """If the body is cancelled, ask the server to cancel the request too (when it wants to be asked)."""
    try:
        yield
    except asyncio.CancelledError:
        if holder.dynamic_flags.sample_cancel_enabled:
            holder.cancellations.add(promise.request_id)
        raise


async def submit(
    holder: Holder,
    kind: PoolKind,
    call: Call,
    expected: Expected[T],
    *,
    retry: bool = True,
    observer: QueueStateObserver | None = None,
) -> Promise[T]:
    """POST a request that is answered with a promise."""
    started = time.monotonic()
    future = await holder.fetch(kind, call, UntypedAPIFuture, retry=retry)
    return Promise(holder, future, expected, roundtrip=time.monotonic() - started, observer=observer)
