"""The outer retry: goes on for minutes where the HTTP client has given up, and waits out billing pauses."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from . import _pace
from ._errors import APIConnectionError, APIStatusError, BillingError, RateLimitError
from ._settings import logger

T = TypeVar("T")


def is_retryable(error: BaseException) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, APIStatusError):
        return error.status_code in (408, 409, 429) or error.status_code >= 500
    return isinstance(error, APIConnectionError | TimeoutError)


class BillingPause:
    """Waits while the server answers 402, for at most ``limit`` seconds in a row."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: float | None = None

    async def wait_or_raise(self, error: BillingError) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
            logger.warning("the server refuses work for billing reasons, waiting up to %.0f s: %s", self._limit, error)
        if now - self._since >= self._limit:
            raise error
        await _pace.sleep(_pace.BILLING_SLEEP_SECONDS)


async def execute_with_retries(
    work: Callable[[], Awaitable[T]], *, billing_pause: float, retry_rate_limits: bool = True
) -> T:
    """Repeat ``work`` on retryable errors for up to 300 s (1, 2, 4, ... 30 s apart).

    Billing refusals are waited out for ``billing_pause`` seconds; ``retry_rate_limits=False`` raises a 429 at once.
    """
    limit = _pace.OUTER_RETRY_SECONDS
    started = time.monotonic()
    pause = BillingPause(billing_pause)
    tries = 0
    while True:
        try:
            return await work()
        except BillingError as error:
            await pause.wait_or_raise(error)
        except Exception as error:
            if isinstance(error, RateLimitError) and not retry_rate_limits:
                raise
            if not is_retryable(error) or time.monotonic() - started >= limit:
                raise
            delay = _pace.OUTER_RETRY.delay(tries)
            tries += 1
            logger.debug("%s; next try in %.0f s", error, delay)
            await _pace.sleep(delay)
