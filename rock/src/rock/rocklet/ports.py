"""Carries HTTP and WebSocket traffic to a port inside the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import websockets
from fastapi import APIRouter, Request, Response, WebSocket
from fastapi.responses import StreamingResponse

from rock.rocklet.errors import RockletError

_HOP_BY_HOP = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailers", "transfer-encoding",
    "upgrade", "host", "content-length",
}  # fmt: skip
_CONNECT_SECONDS = 10.0
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


def end_to_end_headers(headers: Any) -> list[tuple[str, str]]:
    """Headers that a proxy passes on (repeated ones stay repeated)."""
    pairs = headers.multi_items() if hasattr(headers, "multi_items") else headers.items()
    return [(name, value) for name, value in pairs if name.lower() not in _HOP_BY_HOP]


async def forward(
    client: httpx.AsyncClient, request: Request, url: str, drop: frozenset[str] = frozenset()
) -> Response:
    """Sends `request` on to `url` and streams the answer back, byte for byte.

    Args:
        drop: lower-case names of headers that stay here (credentials of ours).
    """
    headers = [(name, value) for name, value in end_to_end_headers(request.headers) if name.lower() not in drop]
    length = request.headers.get("content-length")
    has_body = length not in (None, "0") or "transfer-encoding" in request.headers
    if length is not None:
        headers.append(("content-length", length))
    target = httpx.URL(url, query=request.url.query.encode()) if request.url.query else httpx.URL(url)
    outgoing = client.build_request(
        request.method, target, headers=headers, content=request.stream() if has_body else None
    )
    answer = await client.send(outgoing, stream=True)

    async def body() -> AsyncIterator[bytes]:
        try:
            async for chunk in answer.aiter_raw():
                yield chunk
        finally:
            await answer.aclose()

    response = StreamingResponse(body(), status_code=answer.status_code)
    response.raw_headers = [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in end_to_end_headers(answer.headers)
    ]
    if "content-length" in answer.headers and request.method != "HEAD":
        response.raw_headers.append((b"content-length", answer.headers["content-length"].encode()))
    return response


async def join_websockets(ours: WebSocket, url: str, uds: str | None = None, **options: Any) -> None:
    """Accepts `ours` and carries messages between it and the WebSocket server at `url` until one side closes.

    Args:
        uds: path of the UNIX socket on which that server listens.
    """
    options.update(
        subprotocols=ours.scope.get("subprotocols") or None,
        max_size=None,
        open_timeout=_CONNECT_SECONDS,
        ping_interval=None,
    )
    try:
        theirs = await (websockets.unix_connect(uds, url, **options) if uds else websockets.connect(url, **options))
    except (OSError, TimeoutError, websockets.exceptions.WebSocketException) as error:
        await ours.close(1011, f"target did not accept: {error}"[:120])
        return
    await ours.accept(subprotocol=theirs.subprotocol)

    async def upward() -> None:
        while True:
            message = await ours.receive()
            if message["type"] == "websocket.disconnect":
                await theirs.close(message.get("code") or 1000)
                return
            data = message.get("text") if message.get("text") is not None else message.get("bytes")
            if data is not None:
                await theirs.send(data)

    async def downward() -> None:
        async for message in theirs:
            if isinstance(message, str):
                await ours.send_text(message)
            else:
                await ours.send_bytes(message)
        with contextlib.suppress(RuntimeError):
            await ours.close(theirs.close_code or 1000)

    tasks = [asyncio.create_task(upward()), asyncio.create_task(downward())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await theirs.close()


def port_routes(clients: dict[str, httpx.AsyncClient]) -> APIRouter:
    """Routes `/proxy/{port}/...` (HTTP and WebSocket) and `/portforward?port=` (raw TCP over a WebSocket).

    Args:
        clients: holds the one HTTP client under "ports"; made on first use, closed by the app.
    """
    router = APIRouter()

    def client() -> httpx.AsyncClient:
        if "ports" not in clients:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
            timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
            # Plain HTTP only; without this httpx would look for certificates, which the sandbox may not have.
            clients["ports"] = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False, verify=False)
        return clients["ports"]

    @router.api_route("/proxy/{port}/{path:path}", methods=_METHODS)
    async def proxy(request: Request, port: int, path: str) -> Response:
        check_port(port)
        raw = request.scope["raw_path"].decode("latin-1").partition("?")[0]
        tail = raw.split("/", 3)[3] if raw.count("/") >= 3 else ""
        try:
            return await forward(client(), request, f"http://127.0.0.1:{port}/{tail}")
        except httpx.HTTPError as error:
            raise RockletError(f"nothing answers on port {port} of the sandbox: {error}") from error

    @router.websocket("/proxy/{port}/{path:path}")
    async def proxy_websocket(websocket: WebSocket, port: int, path: str) -> None:
        check_port(port)
        query = f"?{websocket.url.query}" if websocket.url.query else ""
        await join_websockets(websocket, f"ws://127.0.0.1:{port}/{path}{query}")

    @router.websocket("/portforward")
    async def port_forward(websocket: WebSocket, port: int) -> None:
        check_port(port)
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), _CONNECT_SECONDS)
        except (OSError, TimeoutError) as error:
            await websocket.close(1011, f"port {port}: {error}"[:120])
            return
        await websocket.accept()

        async def upward() -> None:
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                writer.write(message.get("bytes") or (message.get("text") or "").encode())
                await writer.drain()

        async def downward() -> None:
            while chunk := await reader.read(1 << 16):
                await websocket.send_bytes(chunk)
            with contextlib.suppress(RuntimeError):
                await websocket.close()

        tasks = [asyncio.create_task(upward()), asyncio.create_task(downward())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.close()

    return router


def check_port(port: int) -> None:
    """Raises RockletError unless `port` is 1 to 65535."""
    if not 1 <= port <= 65535:
        raise RockletError(f"port {port} is not between 1 and 65535")
