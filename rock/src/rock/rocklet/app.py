"""Builds the rocklet's web application."""

from __future__ import annotations

import traceback
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from rock.rocklet.commands import CommandRunner
from rock.rocklet.errors import RockletError, TimeLimit
from rock.rocklet.files import file_routes
from rock.rocklet.models import (
    BashAction,
    BashObservation,
    CloseSession,
    Command,
    CommandResponse,
    CreateSession,
    Interrupt,
    JobPoll,
    JobRef,
    JobStart,
    JobStatus,
)  # fmt: skip
from rock.rocklet.ports import port_routes
from rock.rocklet.sessions import Sessions
from rock.rocklet.statistics import statistics

STATE_FOLDER = Path("/tmp/.rocklet")


def create_app(folder: Path = STATE_FOLDER) -> FastAPI:
    """The rocklet: one per sandbox.

    Args:
        folder: where outputs of commands and sessions are kept.
    """
    runner = CommandRunner(folder / "jobs")
    sessions = Sessions(folder / "sessions")
    clients: dict[str, httpx.AsyncClient] = {}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await sessions.close_all()
        await runner.close()
        for client in clients.values():
            await client.aclose()

    app = FastAPI(title="rocklet", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(RockletError)
    async def on_error(_: Request, error: RockletError) -> JSONResponse:
        return error_answer(error)

    @app.exception_handler(Exception)
    async def on_surprise(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(
            {
                "rockletexception": {
                    "message": f"{type(error).__name__}: {error}",
                    "class_path": f"{type(error).__module__}.{type(error).__qualname__}",
                    "traceback": traceback.format_exc(),
                    "extra_info": {},
                }
            },
            status_code=511,
        )

    @app.get("/")
    async def hello() -> dict[str, str]:
        return {"message": "hello, rocklet"}

    @app.get("/is_alive")
    async def is_alive() -> dict[str, Any]:
        return {"is_alive": True, "message": ""}

    @app.get("/get_statistics")
    async def get_statistics() -> dict[str, float]:
        return statistics()

    @app.post("/execute")
    async def execute(body: Command) -> CommandResponse:
        answer = await runner.execute(body)
        if answer.timed_out:
            raise TimeLimit(
                f"command ran longer than {body.timeout:g} s and was killed",
                stdout=answer.stdout,
                stderr=answer.stderr,
            )
        if body.check and answer.exit_code != 0:
            text = body.error_msg or f"command ended with exit code {answer.exit_code}"
            raise RockletError(f"{text}: {answer.stderr[-2000:]}", exit_code=answer.exit_code)
        return answer

    @app.post("/start_job")
    async def start_job(body: JobStart) -> JobStatus:
        if body.session is None:
            return await runner.start(body)
        if not isinstance(body.command, str):
            raise RockletError("command must be a string when it runs in a session")
        folder = runner.folder / uuid.uuid4().hex[:12]
        session = sessions.get(body.session)
        return runner.adopt(await session.start_background(body.command, folder, body.output_file), body.timeout)

    @app.post("/poll_job")
    async def poll_job(body: JobPoll) -> JobStatus:
        return await runner.poll(body)

    @app.post("/kill_job")
    async def kill_job(body: JobRef) -> JobStatus:
        return await runner.kill(body.job_id)

    @app.post("/create_session")
    async def create_session(body: CreateSession) -> dict[str, Any]:
        return {"output": await sessions.create(body), "session_type": "bash"}

    @app.post("/run_in_session")
    async def run_in_session(body: BashAction) -> BashObservation:
        return await sessions.get(body.session).run(body)

    @app.post("/interrupt_session")
    async def interrupt_session(body: Interrupt) -> dict[str, Any]:
        await sessions.get(body.session).interrupt(body.grace)
        return {"success": True}

    @app.post("/close_session")
    async def close_session(body: CloseSession) -> dict[str, Any]:
        await sessions.close(body.session)
        return {"session_type": "bash"}

    @app.post("/close")
    async def close() -> dict[str, Any]:
        await sessions.close_all()
        await runner.close()
        return {"success": True}

    app.include_router(file_routes())
    app.include_router(port_routes(clients))
    return app


def error_answer(error: RockletError) -> JSONResponse:
    """Status 511 (504 for time-outs) with the error as an object."""
    kind = type(error)
    body = {
        "rockletexception": {
            "message": str(error),
            "class_path": f"{kind.__module__}.{kind.__qualname__}",
            "traceback": "",
            "extra_info": error.extra,
        }
    }
    return JSONResponse(body, status_code=error.status)
