"""How a sampling client retries whole samples."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from .. import _pace
from .._errors import APIConnectionError, APIStatusError, RetryableError
from .._settings import logger

T = TypeVar("T")


@dataclass
class RetryConfig:
    """Retries of samples.

    Args:
        max_connections: Samples under way at once (the server's flag wins); None = no limit.
        progress_timeout: Seconds without a single finished sample after which waiting ones fail.
        retry_delay_base: First wait in seconds; doubles with each try.
        retry_delay_max: Longest wait in seconds.
        jitter_factor: Share of the wait that is random.
        enable_retry_logic: False: the first error is final.
        enable_stuck_detection: False: no progress timeout.
        retryable_exceptions: Errors that are retried, besides the statuses 408, 409, 429 and 5xx.
    """

    max_connections: int | None = 1000
    progress_timeout: float = 7200
    retry_delay_base: float = 0.5
    retry_delay_max: float = 10.0
    jitter_factor: float = 0.25
    enable_retry_logic: bool = True
    enable_stuck_detection: bool = True
    retryable_exceptions: tuple[type[Exception], ...] = (
        TimeoutError,
        APIConnectionError,
        httpx.TimeoutException,
        RetryableError,
    )


class RetryHandler:
    """Runs samples of one client: a limit on their number, retries without end, detection of a standstill."""

    def __init__(self, config: RetryConfig) -> None:
        self.config = config
        limit = config.max_connections
        self._slots: Any = nullcontext() if limit is None else asyncio.Semaphore(limit)
        self._last_progress = time.monotonic()
        self._running = 0

    async def execute(self, work: Callable[[], Awaitable[T]]) -> T:
        """The value of ``work``, which is called anew for each try."""
        async with self._slots:
            if self._running == 0:
                self._last_progress = time.monotonic()
            self._running += 1
            try:
                return await self._execute(work)
            finally:
                self._running -= 1
                self._last_progress = time.monotonic()

    async def _execute(self, work: Callable[[], Awaitable[T]]) -> T:
        tries = 0
        backoff = _pace.Backoff(self.config.retry_delay_base, self.config.retry_delay_max, self.config.jitter_factor)
        while True:
            try:
                return await self._watched(work)
            except Exception as error:
                if not self.config.enable_retry_logic or isinstance(error, _StuckError) or not self._retries(error):
                    raise
                logger.debug("sample: %s; submitting it again", error)
            await _pace.sleep(backoff.delay(tries))
            tries += 1

    def _retries(self, error: Exception) -> bool:
        if isinstance(error, APIStatusError):
            return error.status_code in (408, 409, 429) or error.status_code >= 500
        return isinstance(error, self.config.retryable_exceptions)

    async def _watched(self, work: Callable[[], Awaitable[T]]) -> T:
        if not self.config.enable_stuck_detection:
            return await work()
        task = asyncio.ensure_future(work())
        try:
            while True:
                left = self._last_progress + self.config.progress_timeout - time.monotonic()
                done, _ = await asyncio.wait({task}, timeout=max(left, 0.0))
                if done:
                    return task.result()
                if time.monotonic() - self._last_progress >= self.config.progress_timeout:
                    raise _StuckError(
                        httpx.Request("POST", "asample"),
                        f"No sample finished within {self.config.progress_timeout:g} s (progress_timeout).",
                    )
        finally:
            if not task.done():
                task.cancel()


class _StuckError(APIConnectionError):
    """Raised instead of waiting any longer; not retried."""
