"""Results that are on their way: blocking, awaitable, or as a concurrent future."""

from __future__ import annotations

import asyncio
import warnings
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Generator
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

    def __init__(self, future: ConcurrentFuture[T]) -> None:  # deliberately no super(): all calls are forwarded
        self._future = future

    def result(self, timeout: float | None = None) -> T:
        return AwaitableConcurrentFuture.result(self, timeout)

    def __getattr__(self, name: str) -> Any:  # concurrent.futures.wait and as_completed read _state, _condition, ...
        if name == "_future":
            raise AttributeError(name)
        return getattr(self._future, name)

    def _forward(self, name: str, *args: Any) -> Any:
        if not ConcurrentFutureShim._warned:
            ConcurrentFutureShim._warned = True
            warnings.warn(
                f"using the result of a client method as a concurrent.futures.Future (.{name}) is deprecated; "
                "call .future() first",
                FutureWarning,
                stacklevel=3,
            )
        return getattr(self._future, name)(*args)

    def done(self) -> bool:
        return bool(self._forward("done"))

    def cancel(self) -> bool:
        return bool(self._forward("cancel"))

    def cancelled(self) -> bool:
        return bool(self._forward("cancelled"))

    def running(self) -> bool:
        return bool(self._forward("running"))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error: BaseException | None = self._forward("exception", timeout)
        return error

    def add_done_callback(self, fn: Any) -> None:
        self._forward("add_done_callback", fn)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._future!r}>"
