"""Audit log and usage: honest local figures. Nothing costs money here, so cost fields are left out."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter

from ...dispatch.promises import from_json
from ...errors import BadRequest
from ...ledger import tables
from ..access import Caller, Server
from ..times import iso

router = APIRouter(prefix="/api/v1")
_HOUR = 3600.0


def _time(text: str, field: str) -> float:
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError as error:
        raise BadRequest(f"{field} {text!r} is no RFC 3339 time such as 2026-01-31T10:00:00Z") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@router.get("/audit")
async def audit_log(caller: Caller, backend: Server, event_type: str = "all", day: str | None = None) -> dict[str, Any]:
    """What happened to the caller's checkpoints. There are no projects, teams or organizations to audit here."""
    known = ("all", "checkpoints", "projects", "teams", "organizations")
    if event_type not in known:
        raise BadRequest(f"event_type {event_type!r} is not known; use one of {', '.join(known)}")
    if event_type not in ("all", "checkpoints"):
        return {"entries": []}
    where = [tables.audit.c.owner == caller.owner]
    if day is not None:
        begin = _time(day, "day")
        where += [tables.audit.c.at >= begin, tables.audit.c.at < begin + 24 * _HOUR]
    query = sa.select(tables.audit).where(*where).order_by(tables.audit.c.entry.desc()).limit(10000)
    rows = await backend.ledger.run(lambda connection: list(connection.execute(query)))
    return {
        "entries": [
            {
                "timestamp": iso(row.at),
                "event": row.event,
                "event_details": json.loads(row.details),
                "model_id": row.run_id,
                "tinker_path": row.tinker_path,
            }
            for row in rows
        ]
    }


@router.get("/billing/usage/events")
async def usage_events(caller: Caller, backend: Server, starting_on: str, ending_before: str) -> dict[str, Any]:
    """Tokens per hour, base model and session."""
    begin, end = _time(starting_on, "starting_on"), _time(ending_before, "ending_before")
    if not begin < end:
        raise BadRequest("starting_on must lie before ending_before")
    ops = tables.operations.c
    query = (
        sa.select(
            ops.target,
            ops.session_id,
            ops.kind,
            ops.finished_at,
            ops.input_tokens,
            ops.output_tokens,
            ops.cached_tokens,
        )
        .where(ops.owner == caller.owner, ops.state == "done", ops.finished_at >= begin, ops.finished_at < end)
        .where(ops.kind.in_(("forward", "forward_backward", "sample")))
    )
    models = sa.union(
        sa.select(tables.runs.c.run_id, tables.runs.c.requested_model),
        sa.select(tables.samplers.c.sampler_id, tables.samplers.c.requested_model),
    )
    meta = sa.select(tables.sessions.c.session_id, tables.sessions.c.user_metadata, tables.sessions.c.project_id)

    def read(connection: sa.engine.Connection) -> tuple[list[Any], dict[str, str], dict[str, Any]]:
        names = {row[0]: row[1] for row in connection.execute(models)}
        return list(connection.execute(query)), names, {row.session_id: row for row in connection.execute(meta)}

    rows, names, sessions = await backend.ledger.run(read)
    sums: dict[tuple[float, str, str, str, bool], int] = defaultdict(int)
    for row in rows:
        hour = row.finished_at // _HOUR * _HOUR
        model = names.get(row.target, "")
        if row.kind == "sample":
            sums[hour, model, row.session_id, "sampling_prefill", True] += row.cached_tokens
            sums[hour, model, row.session_id, "sampling_prefill", False] += row.input_tokens - row.cached_tokens
            sums[hour, model, row.session_id, "sampling_sample", False] += row.output_tokens
        else:
            sums[hour, model, row.session_id, "training", False] += row.input_tokens
    data = []
    for (hour, model, session_id, kind, cached), tokens in sorted(sums.items()):
        if tokens:
            info: dict[str, Any] = {"type": kind, "token_count": tokens}
            if kind == "sampling_prefill":
                info["cached"] = cached
            data.append(
                {
                    "bucket_start": iso(hour),
                    "bucket_end": iso(hour + _HOUR),
                    "event_info": info,
                    "base_model": model,
                    "user_id": caller.owner,
                    "user_name": caller.name,
                    "session_id": session_id,
                    "project_id": sessions[session_id].project_id if session_id in sessions else None,
                }
            )
    used = {item["session_id"] for item in data if item["session_id"] in sessions}
    return {
        "data": data,
        "sessions": {key: {"user_metadata": from_json(sessions[key].user_metadata)} for key in used},
        "cost_data_through": iso(min(end, time.time())),
    }


@router.get("/billing/usage/checkpoints/current")
async def checkpoint_storage(caller: Caller, backend: Server, project_id: str | None = None) -> dict[str, Any]:
    """Bytes that the caller's checkpoints take, per project."""
    checkpoints, _ = await backend.store.list(owner=caller.owner)
    query = sa.select(tables.runs.c.run_id, tables.sessions.c.project_id).join(
        tables.sessions, tables.sessions.c.session_id == tables.runs.c.session_id
    )
    projects = {row[0]: row[1] for row in await backend.ledger.run(lambda connection: list(connection.execute(query)))}
    sums: dict[str | None, tuple[int, int]] = {}
    for checkpoint in checkpoints:
        project = projects.get(checkpoint.path.run_id)
        count, size = sums.get(project, (0, 0))
        sums[project] = (count + 1, size + checkpoint.size_bytes)
    return {
        "data": [
            {
                "project_id": project,
                "org_user_urn": caller.owner,
                "user_email": caller.email or None,
                "user_name": caller.name,
                "checkpoint_count": count,
                "size_bytes": size,
                "size_gigabytes": size / 1e9,
                "estimated_monthly_cost_usd": 0.0,
            }
            for project, (count, size) in sums.items()
            if project_id is None or project == project_id
        ],
    }
