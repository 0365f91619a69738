"""Training runs as the REST client lists them."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from fastapi import APIRouter, Query

from ...checkpoints.store import Checkpoint
from ...dispatch.promises import from_json
from ...errors import Forbidden, NotFound
from ...ledger import tables
from ..access import Caller, Server
from ..backend import Backend
from ..principal import Principal
from ..times import iso

router = APIRouter(prefix="/api/v1")
_R = tables.runs.c


def checkpoint_document(checkpoint: Checkpoint) -> dict[str, Any]:
    """A Checkpoint object."""
    return {
        "checkpoint_id": checkpoint.path.checkpoint_id,
        "checkpoint_type": checkpoint.path.kind,
        "time": iso(checkpoint.created_at),
        "tinker_path": str(checkpoint.path),
        "size_bytes": checkpoint.size_bytes,
        "public": checkpoint.public,
        "user_metadata": checkpoint.user_metadata,
        "expires_at": None if checkpoint.expires_at is None else iso(checkpoint.expires_at),
    }


async def _document(row: Any, backend: Backend) -> dict[str, Any]:
    spec = json.loads(row.spec)
    checkpoints, _ = await backend.store.list(run_id=row.run_id)
    last = {kind: next((c for c in checkpoints if c.path.kind == kind), None) for kind in ("training", "sampler")}
    rank = spec["lora"]["rank"]
    return {
        "training_run_id": row.run_id,
        "base_model": row.requested_model,
        "model_owner": row.owner,
        "is_lora": rank > 0,
        "lora_rank": rank or None,
        "last_request_time": iso(_last_request(row, backend)),
        "corrupted": False,
        "last_checkpoint": last["training"] and checkpoint_document(last["training"]),
        "last_sampler_checkpoint": last["sampler"] and checkpoint_document(last["sampler"]),
        "user_metadata": from_json(row.user_metadata),
    }


def _last_request(row: Any, backend: Backend) -> float:
    live = next((run for run in backend.training.runs if run.run_id == row.run_id), None)
    return live.last_request_at if live is not None else row.last_request_at


async def find_run(run_id: str, caller: Principal, backend: Backend, scope: str = "owned") -> Any:
    """The row of a run. With scope ``accessible`` also someone else's that has a published checkpoint."""
    query = sa.select(tables.runs).where(_R.run_id == run_id)
    row = await backend.ledger.run(lambda connection: connection.execute(query).one_or_none())
    if row is None:
        raise NotFound(f"training run {run_id!r} is not known to this server")
    if row.owner != caller.owner:
        checkpoints, _ = await backend.store.list(run_id=run_id)
        if scope != "accessible" or not any(checkpoint.public for checkpoint in checkpoints):
            raise Forbidden(f"training run {run_id!r} belongs to another API key")
    return row


@router.get("/training_runs")
async def list_training_runs(
    caller: Caller,
    backend: Server,
    limit: int = Query(20, ge=0, le=10000),
    offset: int = Query(0, ge=0, lt=2**63),
    access_scope: str = "owned",
    project_id: str | None = None,
) -> dict[str, Any]:
    """The caller's runs, newest first; with access_scope=accessible also those with published checkpoints."""
    mine = _R.owner == caller.owner
    published = (
        sa.select(tables.checkpoints.c.run_id)
        .where(tables.checkpoints.c.run_id == _R.run_id, tables.checkpoints.c.public)
        .exists()
    )
    where = [sa.or_(mine, published) if access_scope == "accessible" else mine]
    if project_id is not None:
        members = sa.select(tables.sessions.c.session_id).where(tables.sessions.c.project_id == project_id)
        where.append(_R.session_id.in_(members))
    query = sa.select(tables.runs).where(*where).order_by(_R.created_at.desc()).limit(limit).offset(offset)
    count = sa.select(sa.func.count()).select_from(tables.runs).where(*where)

    def read(connection: sa.engine.Connection) -> tuple[list[Any], int]:
        return list(connection.execute(query)), int(connection.scalar(count) or 0)

    rows, total = await backend.ledger.run(read)
    return {
        "training_runs": [await _document(row, backend) for row in rows],
        "cursor": {"offset": offset, "limit": limit, "total_count": total},
    }


@router.get("/training_runs/{run_id}")
async def get_training_run(run_id: str, caller: Caller, backend: Server, access_scope: str = "owned") -> dict[str, Any]:
    """One run."""
    return await _document(await find_run(run_id, caller, backend, access_scope), backend)


@router.get("/training_runs/{run_id}/checkpoints")
async def list_run_checkpoints(run_id: str, caller: Caller, backend: Server) -> dict[str, Any]:
    """The checkpoints of a run; of someone else's run the published ones."""
    row = await find_run(run_id, caller, backend, "accessible")
    checkpoints, _ = await backend.store.list(run_id=run_id)
    shown = [c for c in checkpoints if row.owner == caller.owner or c.public]
    return {"checkpoints": [checkpoint_document(checkpoint) for checkpoint in shown]}
