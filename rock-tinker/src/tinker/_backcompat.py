"""Futures of clients that can be used like the clients themselves, as client-making methods once returned those."""

from __future__ import annotations

import warnings
from concurrent.futures import Future as ConcurrentFuture
from typing import Any, Generic, TypeVar

from ._futures import APIFuture, AwaitableConcurrentFuture

C = TypeVar("C")


class BackcompatClientFuture(APIFuture[C], Generic[C]):
    """Waits for the client wherever an attribute of it is used, with a FutureWarning."""

    def __init__(self, future: AwaitableConcurrentFuture[C]) -> None:
        self._client_future = future

    def future(self) -> ConcurrentFuture[C]:
        return self._client_future.future()

    def result(self, timeout: float | None = None) -> C:
        return self._client_future.result(timeout)

    async def result_async(self, timeout: float | None = None) -> C:
        return await self._client_future.result_async(timeout)

    def _forward(self, name: str) -> Any:
        warnings.warn(
            f"using the future of a client as the client (.{name}) is deprecated; "
            "take the client out first with .result() or await",
            FutureWarning,
            stacklevel=3,
        )
        return getattr(self.result(), name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_client_future":
            raise AttributeError(name)
        return self._forward(name)


def forwarding(client_class: type) -> Any:
    """Class decorator: every public method of ``client_class`` is forwarded to the finished client."""

    def decorate(future_class: type) -> type:
        for name in dir(client_class):
            member = getattr(client_class, name)
            if name.startswith("_") or not callable(member) or isinstance(vars(client_class).get(name), staticmethod):
                continue
            setattr(future_class, name, _forwarder(name, member))
        return future_class

    return decorate


def _forwarder(name: str, member: Any) -> Any:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._forward(name)(*args, **kwargs)

    forward.__name__ = name
    forward.__doc__ = member.__doc__
    return forward
