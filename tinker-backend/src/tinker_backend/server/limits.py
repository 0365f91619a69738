"""An ASGI layer in front of the routes: body and header limits, authentication, request counting.

Plain ASGI, so that answers keep their Content-Length: clients take a 400 without one for a broken connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from ..errors import ApiError, TooLarge, TooSlow
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
_DATA_PATHS = (
    "/api/v1/forward",
    "/api/v1/asample",
    "/api/v1/create_custom_loss",
    "/oai/",
    "/anthropic/",
)
"""Beginnings of the paths whose bodies may be large."""


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
        body = _Body(receive, self._most_bytes(scope["path"]), self._backend.config.limits.body_seconds)

        async def counting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            if body.refusal is None:
                await send(message)
            elif message["type"] == "http.response.start":
                # Whatever the layers above have made of it: the body was too large, or too slow.
                status = body.refusal.status
                await _answer(send, body.refusal, scope["path"])

        try:
            self._check(scope)
            await self._app(scope, body.receive, counting_send)
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
        path = scope["path"]
        if not length.isdecimal() or int(length) > (most := self._most_bytes(path)):
            raise TooLarge(f"the body holds {length[:20]} bytes; at most {most} are taken: send smaller chunks")
        if not path.startswith(_OPEN_PATHS):
            scope.setdefault("state", {})["principal"] = self._backend.authenticator.authenticate(headers)

    def _most_bytes(self, path: str) -> int:
        limits = self._backend.config.limits
        return limits.body_bytes if path.startswith(_DATA_PATHS) else min(limits.small_body_bytes, limits.body_bytes)


class _Body:
    """Counts a body as it comes, for clients that do not say its length before, and ends one that does not come."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self._receive = receive
        self._most = most
        self._seconds = seconds
        self._seen = 0
        self._deadline: float | None = None
        self._complete = False
        self.refusal: ApiError | None = None

    async def receive(self) -> Message:
        """The next piece. Raises TooLarge, TooSlow."""
        if self._complete:
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            self.refusal = TooSlow(f"the body did not come within {self._seconds:.0f} s")
            raise self.refusal from None
        if message["type"] == "http.request":
            self._complete = not message.get("more_body", False)
            self._seen += len(message.get("body", b""))
            if self._seen > self._most:
                self.refusal = TooLarge(f"the body holds more than {self._most} bytes: send smaller chunks")
                raise self.refusal
        return message


async def _answer(send: Send, error: ApiError, path: str) -> None:
    body = json.dumps(error_body(path, error.status, str(error))).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
