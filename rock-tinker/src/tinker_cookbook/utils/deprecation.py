"""Warnings for names that will go away, and errors for those that should be gone."""

from __future__ import annotations

import functools
import importlib
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def warn_deprecated(name: str, *, removal_version: str | None = None, message: str = "", stacklevel: int = 2) -> None:
    """Warn that a name is deprecated.

    Raises:
        RuntimeError: the version of the package has reached ``removal_version``.
    """
    parts = [f"'{name}' is deprecated."]
    if removal_version is not None:
        parts.append(f"It will be removed in version {removal_version}.")
    text = " ".join([*parts, *([message] if message else [])])
    current = _current_version()
    if removal_version is not None and current >= _numbers(removal_version):
        version = ".".join(map(str, current))
        raise RuntimeError(
            f"{text} (Current version is {version}; this should have been removed by {removal_version}.)"
        )
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel + 1)


def deprecated(_func: Any = None, *, message: str = "", removal_version: str | None = None) -> Any:
    """Decorator of a deprecated function or class, with or without arguments."""

    def decorate(target: Any) -> Any:
        if isinstance(target, type):
            return _deprecated_class(target, message, removal_version)

        @functools.wraps(target)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            name = f"Function {target.__qualname__.rsplit('>.', 1)[-1]}"
            warn_deprecated(name, removal_version=removal_version, message=message)
            return target(*args, **kwargs)

        return wrapper

    return decorate if _func is None else decorate(_func)


def _deprecated_class(target: Any, message: str, removal_version: str | None) -> Any:
    make = target.__init__

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        warn_deprecated(f"Class {target.__name__}", removal_version=removal_version, message=message)
        make(self, *args, **kwargs)

    target.__init__ = init
    return target


def make_deprecated_module_getattr(
    module_name: str, attrs: Mapping[str, tuple[str, str | None]]
) -> Callable[[str], Any]:
    """A ``__getattr__`` for a module whose names have moved: ``attrs`` maps an old name to its new dotted path and to
    the version that removes the old one."""

    def module_getattr(name: str) -> Any:
        if name not in attrs:
            raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
        path, removal_version = attrs[name]
        module, _, attribute = path.rpartition(".")
        if not module:
            raise ValueError(f"new path {path!r} of {module_name}.{name} must be a dotted path")
        warn_deprecated(f"{module_name}.{name}", removal_version=removal_version, message=f"Use {path} instead.")
        return getattr(importlib.import_module(module), attribute)

    return module_getattr


def _current_version() -> tuple[int, ...]:
    import tinker_cookbook

    return _numbers(tinker_cookbook.__version__)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])
