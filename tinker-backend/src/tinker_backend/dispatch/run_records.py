"""Runs and their operations as the ledger keeps them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..ledger import Ledger, tables
from ..runtime import messages
from ..runtime.roles import LoraSpec, RunSpec
from .promises import from_json, promise_from_row, to_json
from .run import Operation, Run


def run_insertion(run: Run) -> Callable[[Connection], object]:
    """A ledger job that records a new run."""
    statement = sa.insert(tables.runs).values(
        run_id=run.run_id,
        session_id=run.session_id,
        owner=run.owner,
        requested_model=run.requested_model,
        spec=json.dumps(asdict(run.spec)),
        user_metadata=to_json(run.user_metadata),
        created_at=run.created_at,
        last_request_at=run.last_request_at,
        snapshot_seq=run.snapshot_seq,
        failed=run.failed,
    )
    return lambda connection: connection.execute(statement)


async def stored_run(ledger: Ledger, run_id: str) -> tuple[Run, list[Operation]] | None:
    """The run, ready to go on after its last finished operation, and its unfinished operations in order."""
    ops = tables.operations.c

    def select(connection: Connection) -> tuple[Any, list[Any], list[Any]]:
        row = connection.execute(sa.select(tables.runs).where(tables.runs.c.run_id == run_id)).one_or_none()
        states = sa.select(ops.seq_id, ops.state).where(ops.target == run_id).order_by(ops.seq_id)
        pending = sa.select(tables.operations).where(ops.target == run_id, ops.state == "pending")
        return row, list(connection.execute(states)), list(connection.execute(pending.order_by(ops.seq_id)))

    row, states, pending = await ledger.run(select)
    if row is None:
        return None
    run = run_from_row(row)
    finished = [seq for seq, state in states if state in ("done", "failed")]
    run.next_seq = max([run.snapshot_seq, *finished]) + 1
    run.applied_seq = run.next_seq - 1
    for seq, state in states:
        if state == "refused":
            run.refuse(seq)
    return run, [operation_from_row(item) for item in pending]


def operation_from_row(row: Any) -> Operation:
    """The operation of a row of ``operations``."""
    params = {} if row.payload is None else messages.unpack(row.payload)
    size = 0 if row.payload is None else len(row.payload)
    return Operation(row.seq_id, row.kind, params, promise_from_row(row), row.input_tokens, size)


def run_from_row(row: Any) -> Run:
    """The run of a row of ``runs``."""
    spec = json.loads(row.spec)
    return Run(
        run_id=row.run_id,
        session_id=row.session_id,
        owner=row.owner,
        requested_model=row.requested_model,
        spec=RunSpec(spec["run_id"], spec["base_model"], LoraSpec(**spec["lora"]), spec["optimizer"]),
        user_metadata=from_json(row.user_metadata),
        created_at=row.created_at,
        last_request_at=row.last_request_at,
        snapshot_seq=row.snapshot_seq,
        snapshot_folder=row.snapshot_folder,
        failed=row.failed,
    )
