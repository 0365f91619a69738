"""Durable records of sandboxes, in any database that SQLAlchemy knows."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

_METADATA = sa.MetaData()
_SANDBOXES = sa.Table(
    "sandboxes",
    _METADATA,
    sa.Column("sandbox_id", sa.String(64), primary_key=True),
    sa.Column("state", sa.String(16), index=True, nullable=False),
    sa.Column("changed_at", sa.Float, index=True, nullable=False),
    sa.Column("record", sa.Text, nullable=False),
)


class Store:
    """Keeps each sandbox's record as JSON. Safe to use from several threads.

    Args:
        url: SQLAlchemy URL.
    """

    def __init__(self, url: str) -> None:
        memory = url in ("sqlite://", "sqlite:///:memory:")
        options: dict[str, Any] = {"poolclass": sa.pool.StaticPool} if memory else {}
        if url.startswith("sqlite"):
            options["connect_args"] = {"check_same_thread": False, "timeout": 30}
        self.engine = sa.create_engine(url, **options)
        self._lock = threading.Lock()
        if url.startswith("sqlite") and not memory:
            with self.engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
                connection.exec_driver_sql("PRAGMA synchronous=NORMAL")
        _METADATA.create_all(self.engine)

    def save(self, records: Iterable[dict[str, Any]]) -> None:
        """Inserts or replaces records."""
        now = time.time()
        rows = [
            {
                "sandbox_id": record["sandbox_id"],
                "state": record["state"],
                "changed_at": now,
                "record": json.dumps(record),
            }
            for record in records
        ]
        if not rows:
            return
        with self._lock, self.engine.begin() as connection:
            ids = [row["sandbox_id"] for row in rows]
            connection.execute(sa.delete(_SANDBOXES).where(_SANDBOXES.c.sandbox_id.in_(ids)))
            connection.execute(sa.insert(_SANDBOXES), rows)

    def load(self) -> dict[str, dict[str, Any]]:
        """All records by id."""
        with self._lock, self.engine.connect() as connection:
            rows = connection.execute(sa.select(_SANDBOXES.c.sandbox_id, _SANDBOXES.c.record)).all()
        return {row.sandbox_id: json.loads(row.record) for row in rows}

    def forget(self, state: str, before: float) -> list[str]:
        """Removes records in `state` that have not changed since `before` (UNIX time). Returns their ids."""
        condition = sa.and_(_SANDBOXES.c.state == state, _SANDBOXES.c.changed_at < before)
        with self._lock, self.engine.begin() as connection:
            ids = list(connection.execute(sa.select(_SANDBOXES.c.sandbox_id).where(condition)).scalars())
            connection.execute(sa.delete(_SANDBOXES).where(condition))
        return ids

    def close(self) -> None:
        self.engine.dispose()
