"""What both doors share of HTTP: errors in the door's own form, and answers that end when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from ...errors import ApiError, Expired
from ..body_errors import describe

ErrorBody = Callable[[int, str], dict[str, Any]]
T = TypeVar("T")

SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers of a streamed answer: nothing on the way may hold it back."""


def door_route(error_body: ErrorBody) -> type[APIRoute]:
    """A route class whose errors have the door's form."""

    class DoorRoute(APIRoute):
        """Turns errors into answers."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """The handler with errors taken care of."""
            handler = super().get_route_handler()

            async def handle(request: Request) -> Response:
                try:
                    return await handler(request)
                except ApiError as error:
                    body = error_body(error.status, str(error))
                    return JSONResponse(body, error.status, headers=dict(error.headers))
                except RequestValidationError as error:
                    return JSONResponse(error_body(400, describe(error)), 400)

            return handle

    return DoorRoute


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client closes the connection."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Expired("the client closed the connection")
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
