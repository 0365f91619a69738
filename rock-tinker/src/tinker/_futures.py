"""Results that are on their way: blocking, awaitable, or as a concurrent future."""

from __future__ import annotations

import asyncio
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future as ConcurrentFuture
from typing import Any, Generic, TypeVar

from ._loop import LOOP
from ._settings import logger

T = TypeVar("T")


class APIFuture(ABC, Generic[T]):
    """A result that is on its way. The work runs from the call on, whether somebody waits or not.

    In async code: ``value = await future``. Elsewhere: ``value = future.result()``.
    """

    @abstractmethod
    async def result_async(self, timeout: float | None = None) -> T:
        """The result. After ``timeout`` seconds the work is cancelled and TimeoutError raised."""

    @abstractmethod
    def result(self, timeout: float | None = None) -> T:
        """The result, blocking. After ``timeout`` seconds TimeoutError; the work goes on."""

    @abstractmethod
    def future(self) -> ConcurrentFuture[T]:
        """The underlying concurrent future."""

    async def coroutine(self) -> T:
        """The result, for APIs that take coroutines only (``asyncio.create_task(future.coroutine())``)."""
        return await self.result_async()

    def __await__(self) -> Generator[Any, None, T]:
        return self.result_async().__await__()


class AwaitableConcurrentFuture(APIFuture[T]):
    """The usual return value of a client method."""

    def __init__(self, future: ConcurrentFuture[T]) -> None:
        self._future = future

    def future(self) -> ConcurrentFuture[T]:
        return self._future

    def result(self, timeout: float | None = None) -> T:
        """Raises RuntimeError on the SDK's own event loop, where blocking would never end."""
        if LOOP.is_current_thread():
            raise RuntimeError("result() would block the event loop of the SDK for ever; use `await` instead")
        if _in_running_loop():
            logger.warning("result() blocks the running event loop; use `await` instead")
        return self._future.result(timeout)

    async def result_async(self, timeout: float | None = None) -> T:
        return await asyncio.wait_for(asyncio.wrap_future(self._future), timeout)


def start(work: Coroutine[Any, Any, T]) -> AwaitableConcurrentFuture[T]:
    """Start work on the loop of the SDK."""
    return AwaitableConcurrentFuture(LOOP.start(work))


def _in_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class ConcurrentFutureShim(ConcurrentFuture[T], AwaitableConcurrentFuture[T]):
    """An APIFuture that also is a ``concurrent.futures.Future``, as results of sampling once were.

    The methods that only a concurrent future has warn once a process; use :meth:`future` for them.
    """

    _warned = False

    def __init__(self, future: ConcurrentFuture[T]) -> None:
        ConcurrentFuture.__init__(self)
        self._future = future
        future.add_done_callback(self._finish)

    def _finish(self, future: ConcurrentFuture[T]) -> None:
        if future.cancelled():
            ConcurrentFuture.cancel(self)
            self.set_running_or_notify_cancel()
        elif error := future.exception():
            self.set_exception(error)
        else:
            self.set_result(future.result())

    def result(self, timeout: float | None = None) -> T:
        return AwaitableConcurrentFuture.result(self, timeout)

    def _warn(self, name: str) -> ConcurrentFuture[T]:
        if not ConcurrentFutureShim._warned:
            ConcurrentFutureShim._warned = True
            warnings.warn(
                f"using the result of a client method as a concurrent.futures.Future (.{name}) is deprecated; "
                "call .future() first",
                FutureWarning,
                stacklevel=3,
            )
        return self._future

    def done(self) -> bool:
        return self._warn("done").done()

    def cancel(self) -> bool:
        return self._warn("cancel").cancel()

    def cancelled(self) -> bool:
        return self._warn("cancelled").cancelled()

    def running(self) -> bool:
        return self._warn("running").running()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._warn("exception").exception(timeout)

    def add_done_callback(self, fn: Callable[[ConcurrentFuture[T]], object]) -> None:
        self._warn("add_done_callback").add_done_callback(fn)
