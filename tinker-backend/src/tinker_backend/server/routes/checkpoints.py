"""Checkpoints: list, delete, publish, time to live, download."""

from __future__ import annotations

import asyncio
import contextlib
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, RedirectResponse, StreamingResponse

from ...checkpoints.paths import TinkerPath
from ...checkpoints.store import Checkpoint
from ...dispatch.admission import check_ttl
from ...errors import BadRequest, NotFound
from ...wire.requests import TtlBody
from ..access import Caller, Server
from ..backend import Backend
from ..times import iso
from .training_runs import checkpoint_document

router = APIRouter(prefix="/api/v1")
_MANIFEST = "tinker.json"  # what the runtime notes for itself
_ONE = "/training_runs/{run_id}/checkpoints/{segment}/{name}"


@router.get("/checkpoints")
async def list_checkpoints(
    caller: Caller, backend: Server, limit: int = Query(100, ge=0, le=10000), offset: int = Query(0, ge=0, lt=2**63)
) -> dict[str, Any]:
    """All checkpoints of the caller, newest first."""
    checkpoints, total = await backend.store.list(owner=caller.owner, limit=limit, offset=offset)
    return {
        "checkpoints": [checkpoint_document(checkpoint) for checkpoint in checkpoints],
        "cursor": {"offset": offset, "limit": limit, "total_count": total},
    }


@router.delete(_ONE)
async def delete_checkpoint(run_id: str, segment: str, name: str, caller: Caller, backend: Server) -> dict[str, Any]:
    """Deletes a checkpoint and its files."""
    checkpoint = await backend.store.owned(TinkerPath.of(run_id, f"{segment}/{name}"), caller)
    await backend.store.delete(checkpoint)
    return {}


@router.post(_ONE + "/publish")
async def publish_checkpoint(run_id: str, segment: str, name: str, caller: Caller, backend: Server) -> dict[str, Any]:
    """Lets everybody with a key read the checkpoint; published twice is published."""
    checkpoint = await backend.store.owned(TinkerPath.of(run_id, f"{segment}/{name}"), caller)
    await backend.store.update(checkpoint, "checkpoint_published", public=True)
    return {}


@router.delete(_ONE + "/publish")
async def unpublish_checkpoint(run_id: str, segment: str, name: str, caller: Caller, backend: Server) -> dict[str, Any]:
    """Takes a publication back."""
    checkpoint = await backend.store.owned(TinkerPath.of(run_id, f"{segment}/{name}"), caller)
    await backend.store.update(checkpoint, "checkpoint_unpublished", public=False)
    return {}


@router.put(_ONE + "/ttl")
async def set_ttl(
    run_id: str, segment: str, name: str, body: TtlBody, caller: Caller, backend: Server
) -> dict[str, Any]:
    """Sets, or with null removes, the time to live, which counts from now."""
    ttl = check_ttl(body.ttl_seconds)
    checkpoint = await backend.store.owned(TinkerPath.of(run_id, f"{segment}/{name}"), caller)
    expires = None if ttl is None else time.time() + ttl
    await backend.store.update(checkpoint, "checkpoint_ttl_set", expires_at=expires)
    return {}


@router.get(_ONE + "/external_weights_urls")
async def external_weights_urls(
    run_id: str, segment: str, name: str, caller: Caller, backend: Server, request: Request
) -> dict[str, Any]:
    """Signed links to the files of an external checkpoint, or to those of a sampler checkpoint that others can read."""
    path = TinkerPath.of(run_id, f"{segment}/{name}")
    if path.kind == "training":
        raise BadRequest(f"{path} holds {path.kind} weights; save them with save_weights_external to download them")
    checkpoint = await backend.store.readable(path, caller)
    token, expires = backend.signer.sign({"folder": str(path)})
    base = f"{_base(backend, request)}/api/v1/downloads/{token}"
    files = [file for file in checkpoint.files if path.kind == "external" or file != _MANIFEST]
    return {"urls": {file: f"{base}/{quote(file)}" for file in files}, "expires": iso(expires)}


@router.get(_ONE + "/archive")
async def archive(
    run_id: str, segment: str, name: str, caller: Caller, backend: Server, request: Request
) -> RedirectResponse:
    """The whole checkpoint as a tar file, by a signed link (older clients)."""
    checkpoint = await backend.store.readable(TinkerPath.of(run_id, f"{segment}/{name}"), caller)
    token, expires = backend.signer.sign({"archive": str(checkpoint.path)})
    url = f"{_base(backend, request)}/api/v1/downloads/{token}/archive.tar"
    return RedirectResponse(url, 302, headers={"expires": iso(expires)})


def _base(backend: Backend, request: Request) -> str:
    return (backend.config.backend.public_url or str(request.base_url)).rstrip("/")


async def _signed(backend: Backend, claim: dict[str, Any], key: str) -> Checkpoint:
    if key not in claim:
        raise NotFound("this link holds nothing of that kind")
    checkpoint = await backend.store.find(TinkerPath.parse(claim[key]))
    if checkpoint is None:
        raise NotFound(f"checkpoint {claim[key]} is gone")
    return checkpoint


@router.get("/downloads/{token}/archive.tar")
async def download_archive(token: str, backend: Server) -> StreamingResponse:
    """The tar file that a link names, made while it is sent."""
    checkpoint = await _signed(backend, backend.signer.open(token), "archive")
    return StreamingResponse(
        tar_stream(checkpoint.folder),
        media_type="application/x-tar",
        headers={"content-disposition": f'attachment; filename="{checkpoint.path.name}.tar"'},
    )


@router.get("/downloads/{token}/{file:path}")
async def download_file(token: str, file: str, backend: Server) -> FileResponse:
    """One file that a link names."""
    checkpoint = await _signed(backend, backend.signer.open(token), "folder")
    if file not in checkpoint.files:
        raise NotFound(f"checkpoint {checkpoint.path} has no file {file!r}")
    path = checkpoint.folder / file
    if not await asyncio.to_thread(path.is_file):
        raise NotFound(f"the file {file!r} of {checkpoint.path} is no longer on disk")
    return FileResponse(path, filename=Path(file).name)


class _Pipe:
    """A file-like object whose writes another thread reads as chunks. Writing ends when the reader goes away."""

    def __init__(self) -> None:
        self.chunks: Queue[bytes | None] = Queue(maxsize=16)
        self.closed = False

    def write(self, data: bytes) -> int:
        self.put(bytes(data))
        return len(data)

    def put(self, chunk: bytes | None) -> None:
        while not self.closed:
            try:
                return self.chunks.put(chunk, timeout=0.5)
            except Full:
                continue
        raise BrokenPipeError("the download was given up")


def tar_stream(folder: Path) -> Iterator[bytes]:
    """The folder's files as a tar stream, without holding it in memory."""
    pipe = _Pipe()

    def fill() -> None:
        with contextlib.suppress(BrokenPipeError):
            try:
                with tarfile.open(fileobj=pipe, mode="w|") as tar:  # type: ignore[call-overload]
                    for path in sorted(folder.rglob("*")):
                        if path.is_file():
                            tar.add(path, arcname=str(path.relative_to(folder)), recursive=False)
            finally:
                pipe.put(None)

    Thread(target=fill, name="archive", daemon=True).start()
    try:
        while (chunk := pipe.chunks.get()) is not None:
            yield chunk
    finally:
        pipe.closed = True
