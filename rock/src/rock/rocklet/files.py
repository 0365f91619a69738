"""Files of the sandbox: read, write, upload, download, and whole folders as tar streams."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Form, Request, UploadFile
from fastapi.responses import FileResponse, Response, StreamingResponse

from rock.rocklet.errors import FileProblem
from rock.rocklet.models import ReadFile, WriteFile
from rock.runtime.local.archive import pack, unpack

_CHUNK = 1 << 20
MAX_TEXT_BYTES = 64 << 20


def file_routes() -> APIRouter:
    """Routes /read_file /write_file /upload /download /download_dir /upload_dir."""
    router = APIRouter()

    @router.post("/read_file")
    async def read_file(body: ReadFile) -> dict[str, str]:
        return {"content": await asyncio.to_thread(_read, body)}

    @router.post("/write_file")
    async def write_file(body: WriteFile) -> dict[str, Any]:
        await asyncio.to_thread(_write, body)
        return {"success": True, "message": f"wrote {body.path}"}

    @router.post("/upload")
    async def upload(file: UploadFile, target_path: str = Form(...), unzip: bool = Form(False)) -> dict[str, Any]:
        await asyncio.to_thread(_store, file, target_path, unzip)
        return {"success": True, "message": f"stored {target_path}", "file_name": file.filename or ""}

    @router.get("/download")
    async def download(path: str) -> Response:
        if not Path(path).is_file():
            raise FileProblem(f"{path} is not a regular file")
        return FileResponse(path, media_type="application/octet-stream")

    @router.get("/download_dir")
    async def download_dir(path: str) -> StreamingResponse:
        if not Path(path).is_dir():
            raise FileProblem(f"{path} is not a folder")
        archive = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the answer has been sent)
        try:
            await asyncio.to_thread(pack, path, archive)
        except OSError as error:
            archive.close()
            raise FileProblem(f"cannot pack {path}: {error}") from error
        size = archive.tell()
        archive.seek(0)

        async def chunks() -> AsyncIterator[bytes]:
            with archive:
                while chunk := await asyncio.to_thread(archive.read, _CHUNK):
                    yield chunk

        return StreamingResponse(chunks(), media_type="application/x-tar", headers={"content-length": str(size)})

    @router.post("/upload_dir")
    async def upload_dir(request: Request, path: str) -> dict[str, Any]:
        with tempfile.TemporaryFile() as archive:
            async for chunk in request.stream():
                await asyncio.to_thread(archive.write, chunk)
            archive.seek(0)
            try:
                refused = await asyncio.to_thread(unpack, path, archive)
            except OSError as error:
                raise FileProblem(f"cannot unpack into {path}: {error}") from error
        return {"success": not refused, "message": f"unpacked into {path}", "refused": refused}

    return router


def _read(body: ReadFile) -> str:
    path = Path(body.path)
    try:
        if not path.is_file():
            raise FileNotFoundError(2, "no such regular file")
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise OSError(27, f"larger than {MAX_TEXT_BYTES} bytes; use download")
        return path.read_bytes().decode(body.encoding or "utf-8", body.errors or "strict")
    except (OSError, ValueError, LookupError) as error:
        raise FileProblem(f"cannot read {body.path}: {error}") from error


def _write(body: WriteFile) -> None:
    path = Path(body.path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body.content.encode())
        if body.mode is not None:
            path.chmod(body.mode)
    except OSError as error:
        raise FileProblem(f"cannot write {body.path}: {error}") from error


def _store(file: UploadFile, target: str, unzip: bool) -> None:
    path = Path(target)
    try:
        if unzip:
            path.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(file.file) as archive:
                archive.extractall(path)
            return
        if target.endswith("/") or path.is_dir():
            path = path / Path(file.filename or "upload").name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.parent / f".upload-{os.getpid()}-{id(file):x}"
        with draft.open("wb") as stream:
            shutil.copyfileobj(file.file, stream, _CHUNK)
        draft.replace(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise FileProblem(f"cannot store {target}: {error}") from error
