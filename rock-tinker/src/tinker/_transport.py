"""The one place where bytes leave the process.

Everything the SDK sends goes through an ``httpx.AsyncBaseTransport`` that :func:`new_transport` makes. Tests and
embedders put their own in place (an in-memory server, a recorder)::

    with use_transport(lambda: httpx.ASGITransport(app)):
        client = tinker.ServiceClient(base_url="http://tinker.invalid")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from ssl import SSLContext

import httpx

TransportFactory = Callable[[], httpx.AsyncBaseTransport]

# Below the keep-alive time of common servers: a connection is dropped here before the server drops it there.
_KEEPALIVE_SECONDS = 4.0


@cache
def _ssl_context() -> SSLContext:
    """One for all clients: reading the certificates takes tens of milliseconds."""
    return httpx.create_ssl_context()


def _network() -> httpx.AsyncBaseTransport:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEPALIVE_SECONDS)
    return httpx.AsyncHTTPTransport(verify=_ssl_context(), http2=True, limits=limits)


_factory: TransportFactory = _network


def new_transport() -> httpx.AsyncBaseTransport:
    """A transport for one HTTP client."""
    return _factory()


@contextmanager
def use_transport(factory: TransportFactory) -> Iterator[None]:
    """Make all HTTP clients that are created meanwhile use ``factory``."""
    global _factory
    previous, _factory = _factory, factory
    try:
        yield
    finally:
        _factory = previous
