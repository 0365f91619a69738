"""Warnings for names that will go away."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def warn_deprecated(name: str, *, removal_version: str | None = None, message: str = "", stacklevel: int = 2) -> None:
    """Warn once per place that a name is deprecated."""
    when = f" and will be removed in {removal_version}" if removal_version else ""
    warnings.warn(f"{name} is deprecated{when}. {message}".strip(), DeprecationWarning, stacklevel=stacklevel + 1)


def deprecated(*, message: str = "", removal_version: str | None = None) -> Callable[[F], F]:
    """Decorator of a deprecated function."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            warn_deprecated(function.__qualname__, removal_version=removal_version, message=message)
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate
