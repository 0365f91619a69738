"""What the ledger and the disk keep of runs, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import sqlalchemy as sa

from ..checkpoints.folders import remove_tree
from ..ledger import tables
from .run import Run
from .services import Services

_R = tables.runs.c


def save_request_times(services: Services, runs: Iterable[Run]) -> None:
    """Notes when runs were last used."""
    rows = [{"key": run.run_id, "at": run.last_request_at} for run in runs]
    statement = sa.update(tables.runs).where(_R.run_id == sa.bindparam("key"))
    statement = statement.values(last_request_at=sa.bindparam("at"))
    if rows:
        services.ledger.post(lambda connection: connection.execute(statement, rows))


async def ended_runs(services: Services, horizon: float) -> list[str]:
    """Runs whose session has shown no life since ``horizon`` and which were not used since either."""
    query = (
        sa.select(_R.run_id)
        .join(tables.sessions, tables.sessions.c.session_id == _R.session_id)
        .where(tables.sessions.c.heartbeat_at < horizon, _R.last_request_at < horizon, _R.failed.is_(None))
    )
    return await services.ledger.run(lambda connection: list(connection.scalars(query)))


async def remove_run(services: Services, run_id: str) -> None:
    """Ends a run: its snapshots and unnamed samplers go, its named checkpoints stay."""
    message = "its session ended long ago; make a training client from one of its checkpoints"
    statement = sa.update(tables.runs).where(_R.run_id == run_id).values(failed=message, snapshot_folder=None)
    ops = tables.operations
    bodies = sa.update(ops).where(ops.c.target == run_id, ops.c.state != "pending").values(payload=None, result=None)

    def write(connection: sa.engine.Connection) -> None:
        connection.execute(statement)
        connection.execute(bodies)

    await services.ledger.run(write)
    await services.samplers.remove_unnamed(run_id)
    await asyncio.to_thread(remove_tree, services.store.folders.snapshots(run_id))
