"""The deprecated ``*_async`` twins of client methods."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from ._futures import APIFuture

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def value_twin(
    method: Callable[Concatenate[S, P], APIFuture[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """``await client.x_async(...)`` gives the value."""

    @functools.wraps(method)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        _warn(self, method.__name__)
        return await method(self, *args, **kwargs)

    return _rename(twin, method)


def future_twin(
    method: Callable[Concatenate[S, P], APIFuture[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, APIFuture[T]]]:
    """``await client.x_async(...)`` gives the future, to be awaited once more."""

    @functools.wraps(method)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> APIFuture[T]:
        _warn(self, method.__name__)
        return method(self, *args, **kwargs)

    return _rename(twin, method)


def plain_twin(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The same for a method that returns its value without any waiting."""

    @functools.wraps(method)
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        _warn(self, method.__name__)
        return method(self, *args, **kwargs)

    return _rename(twin, method)


def _rename(twin: Any, method: Callable[..., Any]) -> Any:
    twin.__name__ = f"{method.__name__}_async"
    twin.__qualname__ = f"{method.__qualname__}_async"
    twin.__doc__ = f"Deprecated: use :meth:`{method.__name__}` and await its result."
    twin.__signature__ = inspect.signature(method)
    del twin.__wrapped__
    return twin


def _warn(client: object, name: str) -> None:
    warnings.warn(
        f"{type(client).__name__}.{name}_async is deprecated; use `await client.{name}(...)`",
        FutureWarning,
        stacklevel=3,
    )
