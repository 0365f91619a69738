"""Asynchronous twins of methods."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

Self = TypeVar("Self")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_thread(
    method: Callable[Concatenate[Self, Parameters], Result],
) -> Callable[Concatenate[Self, Parameters], Coroutine[Any, Any, Result]]:
    """A coroutine method with the same arguments that runs the object's method of this name in a thread.

    ``aread = in_thread(read)``; a subclass that replaces ``read`` has replaced ``aread`` as well.
    """
    name = method.__name__

    async def twin(self: Self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        found: Result = await asyncio.to_thread(functools.partial(getattr(self, name), *args, **kwargs))
        return found

    twin.__name__, twin.__qualname__ = f"a{name}", f"a{name}"
    twin.__doc__ = f"``{name}``, in a thread."
    twin.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return twin
