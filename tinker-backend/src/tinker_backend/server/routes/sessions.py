"""Sessions: create, heartbeat, finish, look up, search, trace."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from ...dispatch.promises import from_json
from ...errors import BadRequest, NotFound
from ...ledger import tables
from ...wire.requests import CreateSessionBody, FinishBody, ProjectBody, SearchBody, SessionBody
from ..access import Caller, Server
from ..times import iso
from ..trace import chrome_trace

router = APIRouter(prefix="/api/v1")
_S = tables.sessions.c


@router.post("/create_session")
async def create_session(body: CreateSessionBody, caller: Caller, backend: Server, request: Request) -> dict[str, Any]:
    """Opens a session."""
    session = await backend.sessions.create(body, caller, request.headers.get("x-idempotency-key"))
    return {"type": "create_session", "session_id": session.session_id}


@router.post("/session_heartbeat")
async def session_heartbeat(body: SessionBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """A sign of life; 410 after the session was finished."""
    await backend.sessions.heartbeat(body.session_id, caller)
    return {"type": "session_heartbeat"}


@router.post("/sessions/{session_id}/finish")
async def finish_session(session_id: str, body: FinishBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """Ends a session; its runs are written out and leave the runtime's memory."""
    await backend.sessions.finish(session_id, body, caller)
    for run in backend.training.runs:
        if run.session_id == session_id:
            asyncio.get_running_loop().call_later(5, _release, backend, run)
    return {}


def _release(backend: Any, run: Any) -> None:
    task = asyncio.ensure_future(backend.training.release(run))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


@router.put("/sessions/{session_id}/project")
async def assign_project(session_id: str, body: ProjectBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """Puts a session into a project."""
    await backend.sessions.assign_project(session_id, body.project_id, caller)
    return {}


@router.get("/sessions")
async def list_sessions(
    caller: Caller, backend: Server, limit: int = Query(20, ge=0, le=10000), offset: int = Query(0, ge=0, lt=2**63)
) -> dict[str, Any]:
    """All sessions of the caller, newest first."""
    query = (
        sa.select(_S.session_id)
        .where(_S.owner == caller.owner)
        .order_by(_S.created_at.desc())
        .limit(limit)
        .offset(offset)
    )
    return {"sessions": await backend.ledger.run(lambda connection: list(connection.scalars(query)))}


@router.get("/sessions/{session_id}")
async def get_session(session_id: str, caller: Caller, backend: Server) -> dict[str, Any]:
    """Runs and samplers of a session."""
    session = await backend.sessions.get(session_id, caller)
    runs = sa.select(tables.runs.c.run_id).where(tables.runs.c.session_id == session_id)
    samplers = sa.select(tables.samplers.c.sampler_id).where(tables.samplers.c.session_id == session_id)

    def read(connection: sa.engine.Connection) -> tuple[list[str], list[str]]:
        return list(connection.scalars(runs)), list(connection.scalars(samplers))

    run_ids, sampler_ids = await backend.ledger.run(read)
    return {
        "training_run_ids": run_ids,
        "sampler_ids": sampler_ids,
        "user_metadata": session.user_metadata,
        "display_name": session.display_name,
    }


@router.get("/sessions/{session_id}/trace_export")
async def trace_export(session_id: str, caller: Caller, backend: Server, request: Request) -> dict[str, Any]:
    """A link to the session's operations in Chrome trace format (Perfetto reads it)."""
    await backend.sessions.get(session_id, caller)
    token, _ = backend.signer.sign({"trace": session_id})
    base = backend.config.backend.public_url or str(request.base_url)
    return {"status": "ready", "url": f"{base.rstrip('/')}/api/v1/downloads/{token}/trace.json"}


@router.get("/downloads/{token}/trace.json")
async def download_trace(token: str, backend: Server) -> JSONResponse:
    """The trace that a link names."""
    claim = backend.signer.open(token)
    if "trace" not in claim:
        raise NotFound("this link holds no trace")
    return JSONResponse(await chrome_trace(backend.ledger, claim["trace"]))


@router.post("/sessions/search")
async def search_sessions(body: SearchBody, caller: Caller, backend: Server) -> dict[str, Any]:
    """The caller's sessions by id, project, name, metadata and status, newest first."""
    where = [_S.owner == caller.owner]
    if body.owner.type == "user" and caller.owner not in body.owner.owner_urns:
        return {"sessions": []}
    if body.session_id is not None:
        where.append(_S.session_id == body.session_id)
    if body.project_ids is not None:
        where.append(_S.project_id.in_(body.project_ids))
    if body.display_name is not None:
        where.append(_S.display_name.contains(body.display_name, autoescape=True))
    if body.statuses:
        where.append(_S.status.in_([status.type for status in body.statuses]))
    if body.cursor is not None:
        at = _timestamp(body.cursor.last_created_at)
        where.append(
            sa.or_(_S.created_at < at, sa.and_(_S.created_at == at, _S.session_id < body.cursor.last_session_id))
        )
    query = sa.select(tables.sessions).where(*where).order_by(_S.created_at.desc(), _S.session_id.desc())
    checkpoints = (
        sa.select(
            tables.runs.c.session_id,
            sa.func.count(tables.checkpoints.c.tinker_path),
            sa.func.sum(tables.checkpoints.c.size_bytes),
        )
        .join(tables.checkpoints, tables.checkpoints.c.run_id == tables.runs.c.run_id)
        .group_by(tables.runs.c.session_id)
    )

    def read(connection: sa.engine.Connection) -> tuple[list[Any], dict[str, Any]]:
        found = []
        for row in connection.execute(query):
            if _has_metadata(row, body):
                found.append(row)
                if len(found) > body.limit:
                    break
        counts = {row[0]: row for row in connection.execute(checkpoints)} if found else {}
        return found, counts

    rows, counts = await backend.ledger.run(read)
    answer: dict[str, Any] = {"sessions": [_summary(row, counts.get(row.session_id)) for row in rows[: body.limit]]}
    if len(rows) > body.limit:
        last = rows[body.limit - 1]
        answer["next_cursor"] = {"last_created_at": iso(last.created_at), "last_session_id": last.session_id}
    return answer


def _timestamp(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise BadRequest(f"cursor.last_created_at {text!r} is no ISO 8601 time") from error


def _has_metadata(row: Any, body: SearchBody) -> bool:
    if body.user_metadata:
        metadata = from_json(row.user_metadata) or {}
        if any(metadata.get(key) != value for key, value in body.user_metadata.items()):
            return False
    reasons = [reason for status in body.statuses or [] for reason in status.reasons or []]
    return not reasons or row.status != "client_finished" or (from_json(row.finish) or {}).get("reason") in reasons


def _summary(row: Any, counts: Any) -> dict[str, Any]:
    status: dict[str, Any] = {"type": row.status}
    if row.status == "client_finished":
        finish = json.loads(row.finish)
        status |= {"reason": {"type": finish["reason"]}, "detail": finish["detail"]}
    return {
        "session_id": row.session_id,
        "created_at": iso(row.created_at),
        "owner": row.owner,
        "project_id": row.project_id or "",
        "checkpoints_count": counts[1] if counts else 0,
        "checkpoint_storage_bytes": int(counts[2]) if counts else 0,
        "status": status,
        "display_name": row.display_name,
        "user_metadata": from_json(row.user_metadata),
    }
