"""Commands, sessions and files of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
from fastapi import APIRouter, Form, Request, UploadFile
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from rock.admin.control import ControlPlane
from rock.admin.envelope import INTERNAL_SERVER_ERROR, Failure, success
from rock.admin.models import (
    CloseSessionBody,
    CreateSessionBody,
    ExecuteBody,
    InterruptBody,
    JobPollBody,
    JobRefBody,
    JobStartBody,
    ReadFileBody,
    RunInSessionBody,
    WriteFileBody,
)  # fmt: skip
from rock.admin.workers import parse_answer
from rock.rocklet.models import DEFAULT_TIMEOUT_SECONDS

_MARGIN_SECONDS = 30.0
_FILE_SECONDS = 600.0


def command_routes(control: ControlPlane) -> APIRouter:
    router = APIRouter()

    async def carry(path: str, body: Any, timeout: float) -> JSONResponse:
        assert isinstance(body, BaseModel)
        content = body.model_dump(exclude={"sandbox_id"})
        return success(await control.call(body.sandbox_id, "POST", path, timeout, json=content))  # type: ignore[attr-defined]

    @router.post("/execute")
    async def execute(body: ExecuteBody) -> JSONResponse:
        return await carry("execute", body, (body.timeout or DEFAULT_TIMEOUT_SECONDS) + _MARGIN_SECONDS)

    @router.post("/start_job")
    async def start_job(body: JobStartBody) -> JSONResponse:
        return await carry("start_job", body, _MARGIN_SECONDS)

    @router.post("/poll_job")
    async def poll_job(body: JobPollBody) -> JSONResponse:
        return await carry("poll_job", body, body.wait + _MARGIN_SECONDS)

    @router.post("/kill_job")
    async def kill_job(body: JobRefBody) -> JSONResponse:
        return await carry("kill_job", body, _MARGIN_SECONDS)

    @router.post("/create_session")
    async def create_session(body: CreateSessionBody) -> JSONResponse:
        return await carry("create_session", body, body.startup_timeout + _MARGIN_SECONDS)

    @router.post("/run_in_session")
    async def run_in_session(body: RunInSessionBody) -> JSONResponse:
        return await carry("run_in_session", body, (body.timeout or DEFAULT_TIMEOUT_SECONDS) + _MARGIN_SECONDS)

    @router.post("/interrupt_session")
    async def interrupt_session(body: InterruptBody) -> JSONResponse:
        return await carry("interrupt_session", body, body.grace + _MARGIN_SECONDS)

    @router.post("/close_session")
    async def close_session(body: CloseSessionBody) -> JSONResponse:
        return await carry("close_session", body, _MARGIN_SECONDS)

    @router.post("/read_file")
    async def read_file(body: ReadFileBody) -> JSONResponse:
        return await carry("read_file", body, _FILE_SECONDS)

    @router.post("/write_file")
    async def write_file(body: WriteFileBody) -> JSONResponse:
        return await carry("write_file", body, _FILE_SECONDS)

    @router.post("/upload")
    async def upload(
        file: UploadFile, target_path: str = Form(...), sandbox_id: str = Form(...), unzip: bool = Form(False)
    ) -> JSONResponse:
        answer = await control.call(
            sandbox_id, "POST", "upload", _FILE_SECONDS,
            files={"file": (file.filename or "upload", file.file, "application/octet-stream")},
            data={"target_path": target_path, "unzip": str(unzip).lower()},
        )  # fmt: skip
        return success(answer)

    @router.post("/upload_dir")
    async def upload_dir(request: Request, sandbox_id: str, path: str) -> JSONResponse:
        answer = await control.call(
            sandbox_id, "POST", "upload_dir", _FILE_SECONDS, params={"path": path}, content=request.stream()
        )
        return success(answer)

    async def stream(sandbox_id: str, route: str, path: str) -> Response:
        record, worker = control.running(sandbox_id)
        url = control.workers.rocklet_path(sandbox_id, route)
        request = worker.client.build_request("GET", url, params={"path": path}, timeout=_FILE_SECONDS)
        try:
            answer = await worker.client.send(request, stream=True)
            if answer.status_code != 200:
                await answer.aread()
                parse_answer(answer, sandbox_id)
        except httpx.HTTPError as error:
            raise Failure(f"worker {worker.url}: {error!r}", INTERNAL_SERVER_ERROR, sandbox_id) from error

        async def chunks() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    yield chunk
            finally:
                await answer.aclose()
                control.touch(record)

        headers = {name: answer.headers[name] for name in ("content-length",) if name in answer.headers}
        return StreamingResponse(chunks(), media_type=answer.headers.get("content-type"), headers=headers)

    @router.get("/download")
    async def download(sandbox_id: str, path: str) -> Response:
        return await stream(sandbox_id, "download", path)

    @router.get("/download_dir")
    async def download_dir(sandbox_id: str, path: str) -> Response:
        return await stream(sandbox_id, "download_dir", path)

    return router
