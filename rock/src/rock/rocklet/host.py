"""The host rocklet: one per worker machine. It makes the sandboxes, owns them, and carries requests to theirs.

It can start processes as its user, so it asks for a key even on loopback: the key file lies in the state folder that
admin and worker share (or `ROCK_WORKER_KEY_FILE`), mode 0600.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response, WebSocket
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from rock.config import RockConfig, read_key_file, write_key_file
from rock.errors import RockError, SandboxStartError
from rock.rocklet.children import watch_children_by_descriptor
from rock.rocklet.guard import KeyGuard
from rock.rocklet.ports import forward, join_websockets
from rock.rocklet.statistics import statistics
from rock.runtime import make_runtime
from rock.runtime.base import RunningSandbox, Runtime, SandboxRequest, StartProgress

KEY_HEADER = "x-rock-worker-key"
_KEPT_ENDS = 1000


def worker_key_file(config: RockConfig) -> Path:
    """Where the key lies; workers on other machines get a copy of the admin's."""
    return Path(os.environ.get("ROCK_WORKER_KEY_FILE") or config.state_folder / "worker.key")


def ensure_worker_key(config: RockConfig) -> str:
    """The key that admin and worker share; made on first use."""
    path = worker_key_file(config)
    if not path.exists():
        with suppress(FileExistsError):
            write_key_file(path, secrets.token_urlsafe(32))
    return read_key_file(path)[0]


class CommitRequest(BaseModel):
    image_tag: str


class Host:
    """The sandboxes of this worker.

    Args:
        runtime: makes them.
        capacity: what they together may have: sandboxes, cpus, memory (bytes); only what is bounded.
    """

    def __init__(self, runtime: Runtime, capacity: dict[str, float]) -> None:
        self.runtime = runtime
        self.capacity = capacity
        self.held: dict[str, dict[str, float]] = {}
        self.instance = uuid.uuid4().hex
        self.sandboxes: dict[str, RunningSandbox] = {}
        self.starting: dict[str, tuple[SandboxRequest, StartProgress]] = {}
        self.started_at: dict[str, float] = {}
        self.ends: dict[str, str] = {}
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def start(self, request: SandboxRequest) -> dict[str, Any]:
        if request.sandbox_id in self.sandboxes or request.sandbox_id in self.starting:
            raise SandboxStartError(f"sandbox_id {request.sandbox_id!r} is in use", request.sandbox_id)
        self.collect()
        wanted = {"sandboxes": 1.0, "cpus": request.cpus or 0.0, "memory": float(request.memory_bytes or 0)}
        for name, limit in self.capacity.items():
            used = sum(one[name] for one in self.held.values())
            if used + wanted[name] > limit:
                key = "max_sandboxes" if name == "sandboxes" else f"total_{name}"
                raise SandboxStartError(
                    f"this worker has given {used:g} of {limit:g} {name} (worker.{key}); {wanted[name]:g} more do not fit",
                    request.sandbox_id,
                )
        self.held[request.sandbox_id] = wanted
        progress = StartProgress()
        self.starting[request.sandbox_id] = (request, progress)
        try:
            sandbox = await self.runtime.start(request, progress)
        except BaseException:
            self.held.pop(request.sandbox_id, None)
            raise
        finally:
            del self.starting[request.sandbox_id]
        self.sandboxes[request.sandbox_id] = sandbox
        self.started_at[request.sandbox_id] = time.time()
        return {"phases": asdict(progress), **self.describe(request.sandbox_id)}

    def describe(self, sandbox_id: str) -> dict[str, Any]:
        """State of one sandbox: starting, running or ended (with the reason), or unknown."""
        if sandbox_id in self.starting:
            return {"sandbox_id": sandbox_id, "state": "starting", "phases": asdict(self.starting[sandbox_id][1])}
        sandbox = self.sandboxes.get(sandbox_id)
        if sandbox is not None and sandbox.alive:
            started = self.started_at.get(sandbox_id)
            return {"sandbox_id": sandbox_id, "state": "running", "image": sandbox.image, "started_at": started}
        reason = sandbox.end_reason if sandbox is not None else self.ends.get(sandbox_id)
        return {"sandbox_id": sandbox_id, "state": "ended" if reason else "unknown", "reason": reason or ""}

    def collect(self) -> None:
        """Forgets sandboxes that ended by themselves (their files are gone already); keeps the reason."""
        for sandbox_id, sandbox in list(self.sandboxes.items()):
            if not sandbox.alive:
                self._forget(sandbox_id, sandbox.end_reason or "ended")

    def _forget(self, sandbox_id: str, reason: str) -> None:
        self.sandboxes.pop(sandbox_id, None)
        self.started_at.pop(sandbox_id, None)
        self.held.pop(sandbox_id, None)
        self.ends[sandbox_id] = reason
        while len(self.ends) > _KEPT_ENDS:
            del self.ends[next(iter(self.ends))]

    async def stop(self, sandbox_id: str) -> dict[str, Any]:
        sandbox = self.sandboxes.get(sandbox_id)
        client = self._clients.pop(sandbox_id, None)
        if client is not None:
            await client.aclose()
        if sandbox is not None:
            await sandbox.stop()
            self._forget(sandbox_id, sandbox.end_reason or "stopped")
        return self.describe(sandbox_id)

    def client(self, sandbox_id: str) -> httpx.AsyncClient:
        """HTTP client to the rocklet of a running sandbox.

        Raises:
            SandboxGone: it does not run; the message says why.
        """
        sandbox = self.running(sandbox_id)
        client = self._clients.get(sandbox_id)
        if client is None:
            transport = httpx.AsyncHTTPTransport(
                uds=sandbox.socket_path,
                verify=False,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=16),
            )
            client = httpx.AsyncClient(
                transport=transport, base_url="http://rocklet", timeout=httpx.Timeout(None, connect=10)
            )
            self._clients[sandbox_id] = client
        return client

    def running(self, sandbox_id: str) -> RunningSandbox:
        sandbox = self.sandboxes.get(sandbox_id)
        if sandbox is None or not sandbox.alive:
            raise Gone(sandbox_id, self.describe(sandbox_id).get("reason") or "unknown to this worker")
        return sandbox

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        await self.runtime.close()


class Gone(RockError):
    """The sandbox does not run here."""

    def __init__(self, sandbox_id: str, reason: str) -> None:
        super().__init__(f"sandbox {sandbox_id} does not run: {reason}")


def create_host_app(config: RockConfig, on_open: Callable[[], None] = lambda: None) -> FastAPI:
    """The host rocklet's web application. The runtime opens with it and closes with it."""
    key = ensure_worker_key(config)
    runtime = make_runtime(config)
    host = Host(runtime, config.worker.capacity())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch_children_by_descriptor()
        await runtime.open()
        on_open()
        yield
        await host.close()

    app = FastAPI(title="host rocklet", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    app.add_middleware(
        KeyGuard,
        keys=[key],
        given=lambda headers: [headers.get(KEY_HEADER, "")],
        refusal={"reason": f"header {KEY_HEADER} is missing or wrong"},
        open_paths=("/", "/is_alive"),
    )

    @app.exception_handler(Gone)
    async def on_gone(_: Request, error: Gone) -> JSONResponse:
        return JSONResponse({"reason": str(error)}, status_code=410)

    @app.exception_handler(RockError)
    async def on_error(_: Request, error: RockError) -> JSONResponse:
        return JSONResponse({"reason": str(error)}, status_code=409)

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"message": "hello, rocklet"}

    @app.get("/is_alive")
    async def is_alive() -> dict[str, Any]:
        return {"is_alive": True, "message": ""}

    @app.get("/get_statistics")
    async def get_statistics() -> dict[str, float]:
        return statistics()

    @app.post("/sandboxes")
    async def start(request: SandboxRequest) -> dict[str, Any]:
        return {"instance": host.instance, **await host.start(request)}

    @app.get("/sandboxes")
    async def listing() -> dict[str, Any]:
        host.collect()
        known = [*host.sandboxes, *host.starting]
        sandboxes = {one: host.describe(one) for one in known}
        return {"instance": host.instance, "capacity": host.capacity, "sandboxes": sandboxes}

    @app.get("/sandboxes/{sandbox_id}")
    async def describe(sandbox_id: str) -> dict[str, Any]:
        return host.describe(sandbox_id)

    @app.delete("/sandboxes/{sandbox_id}")
    async def stop(sandbox_id: str) -> dict[str, Any]:
        return await host.stop(sandbox_id)

    @app.post("/sandboxes/{sandbox_id}/commit")
    async def commit(sandbox_id: str, body: CommitRequest) -> dict[str, Any]:
        return await host.running(sandbox_id).commit(body.image_tag)

    @app.delete("/images/{name:path}")
    async def remove_image(name: str) -> dict[str, Any]:
        await runtime.remove_image(name)
        return {"image": name}

    async def carry(request: Request, sandbox_id: str, path: str) -> Response:
        url = f"http://rocklet/{raw_tail(request, 4)}"
        for attempt in (1, 2):
            sandbox = host.running(sandbox_id)
            try:
                return await forward(host.client(sandbox_id), request, url, frozenset({KEY_HEADER}))
            except httpx.ConnectError as error:
                # Nothing of the request was sent, so it is safe to send it again once the rocklet is back.
                await asyncio.sleep(0.05)
                if attempt == 2 or not await sandbox.revive():
                    raise Gone(sandbox_id, host.describe(sandbox_id).get("reason") or str(error)) from error
            except httpx.HTTPError as error:
                await asyncio.sleep(0.05)
                if not sandbox.alive:
                    raise Gone(sandbox_id, sandbox.end_reason or "it ended during the request") from error
                raise RockletLost(sandbox_id, error) from error
        raise AssertionError

    app.add_api_route(
        "/sandboxes/{sandbox_id}/rocklet/{path:path}",
        carry,
        methods=["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"],
    )

    @app.websocket("/sandboxes/{sandbox_id}/rocklet/{path:path}")
    async def carry_websocket(websocket: WebSocket, sandbox_id: str, path: str) -> None:
        try:
            sandbox = host.running(sandbox_id)
        except Gone as error:
            await websocket.close(1011, str(error)[:120])
            return
        query = f"?{websocket.url.query}" if websocket.url.query else ""
        url = f"ws://rocklet/{path}{query}"
        await join_websockets(websocket, url, uds=sandbox.socket_path)

    return app


class RockletLost(RockError):
    """The rocklet ended while it worked on a request; whether the request took effect is unknown."""

    def __init__(self, sandbox_id: str, error: Exception) -> None:
        super().__init__(f"the rocklet of sandbox {sandbox_id} ended during the request ({error!r}); the sandbox lives")


def raw_tail(request: Request, skip: int) -> str:
    """The path of a request after its first `skip` - 1 parts, percent-encoding untouched."""
    raw = request.scope["raw_path"].decode("latin-1").partition("?")[0]
    parts = raw.split("/", skip)
    return parts[skip] if len(parts) > skip else ""
