"""Headers that every request carries, and those that say which public method is at work."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from . import _settings
from ._version import __version__

_method: ContextVar[str | None] = ContextVar("tinker_sdk_method", default=None)

_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64", "i386": "x32", "i686": "x32"}
_SYSTEMS = {"linux": "Linux", "darwin": "MacOS", "windows": "Windows", "freebsd": "FreeBSD", "openbsd": "OpenBSD"}


@contextmanager
def sdk_method(name: str | None) -> Iterator[None]:
    """Requests that are started meanwhile say that ``name`` is at work; None: nothing public is.

    A method that runs within another one keeps the name of the outer one.
    """
    token = _method.set(name if name is None else _method.get() or name)
    try:
        yield
    finally:
        _method.reset(token)


def method_headers() -> dict[str, str]:
    name = _method.get()
    return {"x-sdk-version": __version__, "x-sdk-method": name} if name else {}


@cache
def _platform_headers() -> Mapping[str, str]:
    machine = platform.machine().lower()
    system = platform.system().lower()
    return {
        "X-Stainless-Package-Version": __version__,
        "X-Stainless-OS": _SYSTEMS.get(system, f"Other:{system}" if system else "Unknown"),
        "X-Stainless-Arch": _ARCHITECTURES.get(machine, f"other:{machine}" if machine else "unknown"),
        "X-Stainless-Runtime": platform.python_implementation(),
        "X-Stainless-Runtime-Version": ".".join(map(str, sys.version_info[:3])),
        "X-Stainless-Async": "async:asyncio",
    }


def base_headers(overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """Headers of every request of one connection holder; ``overrides`` win."""
    return {
        "Accept": "application/json",
        "Accept-Encoding": "gzip, deflate, zstd",
        "User-Agent": f"AsyncTinker/Python {__version__}",
        **_platform_headers(),
        **_settings.access_headers(),
        **(overrides or {}),
    }
