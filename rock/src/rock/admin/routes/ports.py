"""Reverse proxy to a port of a sandbox: HTTP, WebSocket, raw TCP."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, urlencode

import httpx
from fastapi import APIRouter, Request, Response, WebSocket
from starlette.requests import HTTPConnection

from rock.admin.control import ControlPlane
from rock.admin.envelope import BAD_REQUEST, INTERNAL_SERVER_ERROR, Failure
from rock.rocklet.host import KEY_HEADER
from rock.rocklet.ports import forward, join_websockets

PORT_HEADER, PORT_QUERY = "x-rock-target-port", "rock_target_port"
# Credentials for this service are none of the sandbox's business.
_PRIVATE = frozenset({PORT_HEADER, "x-key", "x-api-key", "xrl-authorization", KEY_HEADER})
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


def target(connection: HTTPConnection, sandbox_id: str, path: str) -> tuple[int, str]:
    """Port and remaining path: from `port/{n}/…`, the header or the query, exactly one of them.

    Raises:
        Failure: none, several, or not a port.
    """
    found: list[tuple[str, str]] = []
    match = re.match(r"port/([^/]+)(?:/(.*))?$", path, re.DOTALL)
    if match:
        found.append((match.group(1), match.group(2) or ""))
    if connection.headers.get(PORT_HEADER):
        found.append((connection.headers[PORT_HEADER], path))
    if connection.query_params.get(PORT_QUERY):
        found.append((connection.query_params[PORT_QUERY], path))
    if len(found) != 1:
        raise Failure(
            f"name the target port exactly once: path port/N/..., header {PORT_HEADER} or query {PORT_QUERY}",
            BAD_REQUEST,
            sandbox_id,
        )
    port, rest = found[0]
    if not port.isdigit() or not 1 <= int(port) <= 65535 or int(port) == 22:
        raise Failure(f"target port {port!r} must be 1 to 65535 and not 22", BAD_REQUEST, sandbox_id)
    return int(port), rest


def _query(connection: HTTPConnection) -> str:
    pairs = parse_qsl(connection.url.query, keep_blank_values=True)
    if not any(name == PORT_QUERY for name, _ in pairs):
        return connection.url.query
    return urlencode([(name, value) for name, value in pairs if name != PORT_QUERY])


def port_routes(control: ControlPlane) -> APIRouter:
    router = APIRouter()

    async def proxy(request: Request, sandbox_id: str, path: str) -> Response:
        raw = request.scope["raw_path"].decode("latin-1").partition("?")[0].split("/proxy/", 1)[1]
        port, rest = target(request, sandbox_id, raw)
        record, worker = control.running(sandbox_id)
        route = control.workers.rocklet_path(sandbox_id, f"proxy/{port}/{rest}")
        request.scope["query_string"] = _query(request).encode()
        if hasattr(request, "_url"):
            del request._url
        try:
            return await forward(worker.client, request, worker.url + route, _PRIVATE)
        except httpx.HTTPError as error:
            raise Failure(f"worker {worker.url}: {error!r}", INTERNAL_SERVER_ERROR, sandbox_id) from error
        finally:
            control.touch(record)

    router.add_api_route("/sandboxes/{sandbox_id}/proxy/{path:path}", proxy, methods=_METHODS)

    @router.websocket("/sandboxes/{sandbox_id}/proxy/{path:path}")
    async def proxy_websocket(websocket: WebSocket, sandbox_id: str, path: str) -> None:
        try:
            port, rest = target(websocket, sandbox_id, path)
            _, worker = control.running(sandbox_id)
        except Failure as failure:
            await websocket.close(1008, str(failure)[:120])
            return
        query = _query(websocket)
        route = control.workers.rocklet_path(sandbox_id, f"proxy/{port}/{quote(rest)}") + (f"?{query}" if query else "")
        await _join(websocket, worker.url, route)

    @router.websocket("/sandboxes/{sandbox_id}/portforward")
    async def port_forward(websocket: WebSocket, sandbox_id: str, port: int) -> None:
        try:
            if not 1024 <= port <= 65535:
                raise Failure(f"port {port} must be 1024 to 65535", BAD_REQUEST, sandbox_id)
            _, worker = control.running(sandbox_id)
        except Failure as failure:
            await websocket.close(1008, str(failure)[:120])
            return
        await _join(websocket, worker.url, control.workers.rocklet_path(sandbox_id, f"portforward?port={port}"))

    async def _join(websocket: WebSocket, worker_url: str, route: str) -> None:
        url = "ws" + worker_url.removeprefix("http") + route
        await join_websockets(websocket, url, additional_headers={KEY_HEADER: control.workers.key}, proxy=None)

    return router
