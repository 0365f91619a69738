"""An ASGI layer in front of the routes: body and header limits, authentication, request counting.

Plain ASGI, so that answers keep their Content-Length: clients take a 400 without one for a broken connection.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from ..errors import ApiError, TooLarge
from .chat.error_form import error_body

if TYPE_CHECKING:
    from .backend import Backend

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_OPEN_PATHS = ("/api/v1/healthz", "/healthz", "/api/v1/downloads/", "/console", "/favicon.ico")
"""Reachable without a key: they show nothing, or carry a signature of their own."""


class FrontDoor:
    """Checks each request before a route sees it."""

    def __init__(self, app: App, backend: Backend) -> None:
        self._app = app
        self._backend = backend
        self.counts: dict[tuple[str, int], int] = {}
        self.seconds: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500

        async def counting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, self._limited(receive), counting_send)
        except ApiError as error:
            await _answer(counting_send, error, scope["path"])
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.counts[route, status] = self.counts.get((route, status), 0) + 1
            self.seconds[route] = self.seconds.get(route, 0.0) + time.perf_counter() - started

    def _check(self, scope: Scope) -> None:
        limits = self._backend.config.limits
        headers: dict[str, str] = {}
        size = 0
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        if size > limits.header_bytes:
            raise TooLarge(f"the headers hold {size} bytes; at most {limits.header_bytes} are taken")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > limits.body_bytes:
            raise TooLarge(
                f"the body holds {length[:20]} bytes; at most {limits.body_bytes} are taken: send smaller chunks"
            )
        path = scope["path"]
        if not path.startswith(_OPEN_PATHS):
            scope.setdefault("state", {})["principal"] = self._backend.authenticator.authenticate(headers)

    def _limited(self, receive: Receive) -> Receive:
        """A body without Content-Length is counted as it comes."""
        limit = self._backend.config.limits.body_bytes
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > limit:
                    raise TooLarge(f"the body holds more than {limit} bytes: send smaller chunks")
            return message

        return counted


async def _answer(send: Send, error: ApiError, path: str) -> None:
    body = json.dumps(error_body(path, error.status, str(error))).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
