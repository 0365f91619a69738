"""The named checkpoints: who owns them, where they lie, how long they live."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..errors import BadRequest, Forbidden, NotFound
from ..ledger import Ledger, tables
from ..server.principal import Principal
from .folders import WeightFolders, link_tree, remove_tree
from .paths import Kind, TinkerPath

log = logging.getLogger(__name__)
_C = tables.checkpoints.c


@dataclass(frozen=True)
class Checkpoint:
    """A named checkpoint."""

    path: TinkerPath
    owner: str
    folder: Path
    files: dict[str, int]
    size_bytes: int
    spec: dict[str, Any]
    """base_model, lora {rank, train_*, ...} and optimizer of its run."""
    requested_model: str
    user_metadata: dict[str, Any] | None
    created_at: float
    expires_at: float | None
    public: bool


def _from_row(row: Any) -> Checkpoint:
    return Checkpoint(
        path=TinkerPath(row.run_id, row.kind, row.name),
        owner=row.owner,
        folder=Path(row.folder),
        files=json.loads(row.files),
        size_bytes=row.size_bytes,
        spec=json.loads(row.spec),
        requested_model=row.requested_model,
        user_metadata=None if row.user_metadata is None else json.loads(row.user_metadata),
        created_at=row.created_at,
        expires_at=row.expires_at,
        public=row.public,
    )


def audit_record(owner: str, event: str, path: TinkerPath, **details: Any) -> Callable[[Connection], None]:
    """A ledger job that notes what happened to a checkpoint."""
    statement = sa.insert(tables.audit).values(
        at=time.time(),
        owner=owner,
        event=event,
        details=json.dumps(details),
        run_id=path.run_id,
        tinker_path=str(path),
    )

    def write(connection: Connection) -> None:
        connection.execute(statement)

    return write


class CheckpointStore:
    """All named checkpoints."""

    def __init__(self, ledger: Ledger, folders: WeightFolders) -> None:
        self._ledger = ledger
        self.folders = folders

    async def find(self, path: TinkerPath) -> Checkpoint | None:
        """The checkpoint, if it exists and has not expired."""
        query = sa.select(tables.checkpoints).where(_C.tinker_path == str(path))
        row = await self._ledger.run(lambda connection: connection.execute(query).one_or_none())
        if row is None or (row.expires_at is not None and row.expires_at <= time.time()):
            return None
        return _from_row(row)

    async def readable(self, path: TinkerPath, principal: Principal) -> Checkpoint:
        """One that the caller may read: an own or a published one. Raises NotFound, Forbidden."""
        checkpoint = await self.find(path)
        if checkpoint is None:
            raise NotFound(f"there is no checkpoint {path} (it may have been deleted, or its time to live is over)")
        if checkpoint.owner != principal.owner and not checkpoint.public:
            raise Forbidden(f"checkpoint {path} belongs to another API key and is not published")
        return checkpoint

    async def owned(self, path: TinkerPath, principal: Principal) -> Checkpoint:
        """One that the caller may change. Raises NotFound, Forbidden."""
        checkpoint = await self.readable(path, principal)
        if checkpoint.owner != principal.owner:
            raise Forbidden(f"checkpoint {path} belongs to another API key")
        return checkpoint

    async def list(
        self, *, owner: str | None = None, run_id: str | None = None, limit: int = 10**6, offset: int = 0
    ) -> tuple[list[Checkpoint], int]:
        """Live checkpoints, newest first, and how many there are."""
        where = [sa.or_(_C.expires_at.is_(None), _C.expires_at > time.time())]
        if owner is not None:
            where.append(_C.owner == owner)
        if run_id is not None:
            where.append(_C.run_id == run_id)
        query = sa.select(tables.checkpoints).where(*where).order_by(_C.created_at.desc(), _C.tinker_path)
        count = sa.select(sa.func.count()).select_from(tables.checkpoints).where(*where)

        def read(connection: Connection) -> tuple[list[Any], int]:
            return list(connection.execute(query.limit(limit).offset(offset))), int(connection.scalar(count) or 0)

        rows, total = await self._ledger.run(read)
        return [_from_row(row) for row in rows], total

    def free_folder(self, path: TinkerPath, taken: Path | None) -> Path:
        """Where a save may write: the plain place, or beside the one that it will replace."""
        folder = self.folders.checkpoint(path)
        return folder if taken is None else folder.with_name(f"{folder.name}~{int(time.time() * 1000):x}")

    def insertion(self, checkpoint: Checkpoint) -> Callable[[Connection], None]:
        """A ledger job that records a new checkpoint, in place of one of the same path."""
        row = {
            "tinker_path": str(checkpoint.path),
            "run_id": checkpoint.path.run_id,
            "owner": checkpoint.owner,
            "kind": checkpoint.path.kind,
            "name": checkpoint.path.name,
            "folder": str(checkpoint.folder),
            "files": json.dumps(checkpoint.files),
            "size_bytes": checkpoint.size_bytes,
            "spec": json.dumps(checkpoint.spec),
            "requested_model": checkpoint.requested_model,
            "user_metadata": None if checkpoint.user_metadata is None else json.dumps(checkpoint.user_metadata),
            "created_at": checkpoint.created_at,
            "expires_at": checkpoint.expires_at,
            "public": checkpoint.public,
        }
        note = audit_record(checkpoint.owner, "checkpoint_created", checkpoint.path, size_bytes=checkpoint.size_bytes)

        def write(connection: Connection) -> None:
            connection.execute(sa.delete(tables.checkpoints).where(_C.tinker_path == row["tinker_path"]))
            connection.execute(sa.insert(tables.checkpoints).values(**row))
            note(connection)

        return write

    async def delete(self, checkpoint: Checkpoint, event: str = "checkpoint_deleted") -> None:
        """Forgets a checkpoint and removes its folder."""
        note = audit_record(checkpoint.owner, event, checkpoint.path)

        def write(connection: Connection) -> None:
            connection.execute(
                sa.delete(tables.checkpoints).where(
                    _C.tinker_path == str(checkpoint.path), _C.folder == str(checkpoint.folder)
                )
            )
            note(connection)

        await self._ledger.run(write)
        await asyncio.to_thread(remove_tree, checkpoint.folder)

    async def update(self, checkpoint: Checkpoint, event: str, **values: Any) -> None:
        """Changes ``public`` or ``expires_at``."""
        statement = sa.update(tables.checkpoints).where(_C.tinker_path == str(checkpoint.path)).values(**values)
        note = audit_record(checkpoint.owner, event, checkpoint.path, **values)

        def write(connection: Connection) -> None:
            connection.execute(statement)
            note(connection)

        await self._ledger.run(write)

    async def copy(self, source: Checkpoint, run_id: str, owner: str, ttl_seconds: int | None) -> Checkpoint:
        """A copy of the checkpoint under another run."""
        path = TinkerPath(run_id, source.path.kind, source.path.name)
        now = time.time()
        copy = Checkpoint(
            path=path,
            owner=owner,
            folder=self.folders.checkpoint(path),
            files=source.files,
            size_bytes=source.size_bytes,
            spec=source.spec,
            requested_model=source.requested_model,
            user_metadata=source.user_metadata,
            created_at=now,
            expires_at=None if ttl_seconds is None else now + ttl_seconds,
            public=False,
        )
        await asyncio.to_thread(link_tree, source.folder, copy.folder)
        await self._ledger.run(self.insertion(copy))
        return copy

    async def expire(self) -> int:
        """Deletes what is past its time to live. Returns how many."""
        query = sa.select(tables.checkpoints).where(_C.expires_at <= time.time())
        rows = await self._ledger.run(lambda connection: list(connection.execute(query)))
        for row in rows:
            checkpoint = _from_row(row)
            log.info("checkpoint %s expired", checkpoint.path)
            await self.delete(checkpoint, "checkpoint_expired")
        return len(rows)


def require_kind(path: TinkerPath, kind: Kind, purpose: str) -> None:
    """Raises BadRequest when a path is of another kind than its use needs."""
    if path.kind != kind:
        raise BadRequest(f"{path} holds {path.kind} weights; {purpose} needs a {kind} checkpoint")
