"""The operations of a session as a Chrome trace: one row per run or sampler, waiting and running as slices."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from ..ledger import Ledger, tables


async def chrome_trace(ledger: Ledger, session_id: str) -> dict[str, Any]:
    """``{"traceEvents": [...]}``; times in microseconds."""
    ops = tables.operations.c
    query = sa.select(
        ops.target, ops.seq_id, ops.kind, ops.state, ops.created_at, ops.started_at, ops.finished_at, ops.input_tokens
    ).where(ops.session_id == session_id, ops.finished_at.is_not(None))
    rows = await ledger.run(lambda connection: list(connection.execute(query.order_by(ops.created_at))))
    threads: dict[str, int] = {}
    events: list[dict[str, Any]] = []
    for row in rows:
        if row.target not in threads:
            threads[row.target] = len(threads) + 1
            events.append(
                {
                    "ph": "M",
                    "name": "thread_name",
                    "pid": 1,
                    "tid": threads[row.target],
                    "args": {"name": row.target},
                }
            )
        started = row.started_at or row.created_at
        events.append(
            {
                "ph": "X",
                "name": row.kind,
                "pid": 1,
                "tid": threads[row.target],
                "ts": started * 1e6,
                "dur": (row.finished_at - started) * 1e6,
                "args": {
                    "seq_id": row.seq_id,
                    "state": row.state,
                    "tokens": row.input_tokens,
                    "waited_seconds": started - row.created_at,
                },
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
