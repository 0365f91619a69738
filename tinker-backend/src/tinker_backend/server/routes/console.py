"""A small page for people, and the figures behind it."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse

from ...ledger import tables
from ..access import Caller, Server
from ..times import iso
from .training_runs import checkpoint_document

router = APIRouter()
_ROWS = 50


@router.get("/", include_in_schema=False)
async def root() -> RedirectResponse:
    """To the page."""
    return RedirectResponse("/console")


@router.get("/console", include_in_schema=False)
async def page() -> HTMLResponse:
    """The page itself; it shows nothing until it has fetched the figures with the visitor's key."""
    return HTMLResponse(files("tinker_backend.server").joinpath("console.html").read_text(encoding="utf-8"))


@router.get("/api/v1/status")
async def status(caller: Caller, backend: Server) -> dict[str, Any]:
    """What the server is doing."""
    return await backend.status()


@router.get("/api/v1/overview")
async def overview(caller: Caller, backend: Server) -> dict[str, Any]:
    """Status, and the caller's newest sessions, runs and checkpoints."""
    sessions = sa.select(tables.sessions).where(tables.sessions.c.owner == caller.owner)
    runs = sa.select(tables.runs).where(tables.runs.c.owner == caller.owner)
    ops = tables.operations.c
    steps = (
        sa.select(ops.target, sa.func.count(), sa.func.sum(ops.input_tokens))
        .where(ops.owner == caller.owner, ops.state == "done")
        .group_by(ops.target)
    )

    def read(connection: sa.engine.Connection) -> tuple[list[Any], list[Any], dict[str, Any]]:
        return (
            list(connection.execute(sessions.order_by(tables.sessions.c.created_at.desc()).limit(_ROWS))),
            list(connection.execute(runs.order_by(tables.runs.c.created_at.desc()).limit(_ROWS))),
            {row[0]: row for row in connection.execute(steps)},
        )

    session_rows, run_rows, counts = await backend.ledger.run(read)
    checkpoints, _ = await backend.store.list(owner=caller.owner, limit=_ROWS)
    return {
        "status": await backend.status(),
        "sessions": [
            {"session_id": s.session_id, "name": s.display_name, "created": iso(s.created_at), "status": s.status}
            for s in session_rows
        ],
        "runs": [
            {
                "run_id": r.run_id,
                "base_model": r.requested_model,
                "created": iso(r.created_at),
                "operations": counts[r.run_id][1] if r.run_id in counts else 0,
                "tokens": int(counts[r.run_id][2] or 0) if r.run_id in counts else 0,
            }
            for r in run_rows
        ],
        "checkpoints": [checkpoint_document(checkpoint) for checkpoint in checkpoints],
    }
