"""Asks for a key before a request reaches the application (HTTP and WebSocket)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class KeyGuard:
    """ASGI middleware.

    Args:
        keys: the keys that are accepted.
        given: takes the headers, returns the keys that the caller showed.
        refusal: body of the 401 answer.
        open_paths: paths that need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Iterable[str],
        given: Callable[[Headers], Iterable[str]],
        refusal: dict[str, Any],
        open_paths: Iterable[str] = ("/",),
    ) -> None:
        self.app, self.given, self.refusal = app, given, refusal
        self.keys = [key.encode() for key in keys]
        self.open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in self.open_paths or self._fits(Headers(scope=scope)):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "key is missing or wrong"})
        else:
            await JSONResponse(self.refusal, status_code=401)(scope, receive, send)

    def _fits(self, headers: Headers) -> bool:
        shown = [key.encode() for key in self.given(headers) if key]
        # every pair is compared, so that the time tells nothing
        fits = [secrets.compare_digest(key, one) for key in self.keys for one in shown]
        return any(fits)
