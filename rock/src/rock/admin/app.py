"""Builds the admin's web application."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rock.admin.absent import absent
from rock.admin.control import ControlPlane
from rock.admin.encryption import encrypt
from rock.admin.envelope import BAD_REQUEST, INTERNAL_SERVER_ERROR, Failure, failed
from rock.admin.placement import ListedWorkers, Placement
from rock.admin.ray_placement import RayPlacement
from rock.admin.routes.commands import command_routes
from rock.admin.routes.ports import port_routes
from rock.admin.routes.sandboxes import sandbox_routes
from rock.admin.store import Store
from rock.admin.workers import Workers
from rock.config import RockConfig, read_key_file
from rock.rocklet.guard import KeyGuard
from rock.rocklet.host import ensure_worker_key

PREFIX = "/apis/envs/sandbox/v1"
_LOG = logging.getLogger("rock.admin")


def create_admin_app(config: RockConfig, on_open: Callable[[], None] = lambda: None) -> FastAPI:
    """The admin. Database, workers and background tasks open and close with the application."""
    config.state_folder.mkdir(parents=True, exist_ok=True)
    encryption_key = read_key_file(config.auth.encryption_key_file)[0] if config.auth.encryption_key_file else None
    if encryption_key is not None:
        encrypt(encryption_key, "probe")  # a wrong key shows now, not at the first request
    workers = Workers(config.worker_urls, ensure_worker_key(config))
    placement: Placement = ListedWorkers(workers)
    if config.placement.type == "ray":
        placement = RayPlacement(config.placement, workers, config.worker.port)
    control = ControlPlane(config, Store(config.database_url), workers, placement, encryption_key)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await control.open()
        on_open()
        yield
        await control.close()

    app = FastAPI(title="ROCK admin", lifespan=lifespan)
    if config.auth.key_file is not None:
        app.add_middleware(
            KeyGuard,
            keys=read_key_file(config.auth.key_file),
            given=shown_keys,
            refusal={
                "status": "Failed",
                "message": "key is missing or wrong",
                "error": "send the key as 'Authorization: Bearer …', X-API-Key or X-Key (SDK: extra_headers)",
                "result": {"code": BAD_REQUEST, "exit_code": -1, "failure_reason": "key is missing or wrong"},
            },
        )
    app.add_middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(AccessLog, tracebacks=config.logs.traceback)

    @app.exception_handler(Failure)
    async def on_failure(_: Request, error: Failure) -> JSONResponse:
        return failed(str(error), error.code, error.sandbox_id, **error.result)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        return failed(f"bad request: {problems}", BAD_REQUEST)

    @app.exception_handler(404)
    async def on_unknown(request: Request, _: Exception) -> JSONResponse:
        return failed(absent(request.method, request.url.path), BAD_REQUEST, status=404, kind="not_found")

    @app.exception_handler(HTTPException)
    async def on_refused(_: Request, error: HTTPException) -> JSONResponse:
        return failed(f"bad request: {error.detail}", BAD_REQUEST, status=error.status_code)

    @app.exception_handler(UnicodeEncodeError)
    async def on_half_a_character(_: Request, error: UnicodeEncodeError) -> JSONResponse:
        return failed(f"bad request: the text holds half a surrogate pair ({error}); send valid Unicode", BAD_REQUEST)

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"message": "hello, ROCK!"}

    app.include_router(sandbox_routes(control), prefix=PREFIX)
    app.include_router(command_routes(control), prefix=PREFIX)
    app.include_router(port_routes(control), prefix=PREFIX)
    return app


def shown_keys(headers: Headers) -> Iterable[str]:
    """Keys that a request shows, in any of the accepted headers."""
    bearer = headers.get("authorization", "")
    yield bearer[7:].strip() if bearer.lower().startswith("bearer ") else bearer
    for name in ("x-api-key", "x-key", "xrl-authorization"):
        value = headers.get(name, "")
        yield value.removeprefix("Bearer ").strip()


class AccessLog:
    """Logs method, path, status and time of each request; never headers or bodies. What nobody foresaw becomes a Failed answer."""

    def __init__(self, app: ASGIApp, tracebacks: bool) -> None:
        self.app = app
        self.tracebacks = tracebacks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 0

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, note)
        except Exception as error:
            _LOG.exception("%s %s failed", scope["method"], scope["path"])
            if status:  # the answer has begun; only cutting it off tells the client
                raise
            detail = {"traceback": traceback.format_exc()} if self.tracebacks else {}
            reason = f"internal error: {type(error).__name__}: {error}"
            await failed(reason, INTERNAL_SERVER_ERROR, status=500, **detail)(scope, receive, note)
        finally:
            took = (time.monotonic() - start) * 1000
            _LOG.info("%s %s %d %.1f ms", scope["method"], scope["path"], status, took)
