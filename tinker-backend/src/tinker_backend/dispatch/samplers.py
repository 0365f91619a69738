"""Samplers: what a sampling client holds, and the immutable weights versions behind them.

A version is resident in one life of the runtime and can be brought back: a base model by name, saved weights from
their folder, unnamed weights from the folder that is written right after they are published.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from ..checkpoints.folders import remove_tree
from ..config import LimitSection
from ..errors import BackendError, Expired, Forbidden, NotFound
from ..ledger import Ledger, tables
from ..runtime.roles import RuntimeFault
from ..server.principal import Principal
from .link import RuntimeLink

log = logging.getLogger(__name__)
_T = tables.samplers
_CALL_SECONDS = 600.0


@dataclass(eq=False)
class SamplerRecord:
    """A sampler. ``kind``: base, saved (named checkpoint), snapshot or inflight (unnamed)."""

    sampler_id: str
    session_id: str
    owner: str
    base_model: str
    requested_model: str
    model_path: str | None
    kind: str
    version: str
    run_id: str | None = None
    seq_id: int | None = None
    clones: int = 0
    created_at: float = field(default_factory=time.time)
    last_local_seq: int = 2**62

    def local_seq(self) -> int:
        """A seq_id for a client that does not number its requests: above all others, and new after a restart too."""
        self.last_local_seq = max(self.last_local_seq + 1, 2**62 + int(time.time() * 1e6))
        return self.last_local_seq


@dataclass(eq=False)
class Version:
    """One set of frozen weights."""

    name: str
    base_model: str
    folder: Path | None = None
    run_id: str | None = None
    """Run whose operations make the version again while it has no folder."""
    resident_in: int | None = None
    in_use: int = 0
    used_at: float = field(default_factory=time.monotonic)
    gone: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_base(self) -> bool:
        """Whether it is a base model without an adapter."""
        return self.folder is None and self.run_id is None


class SamplerBook:
    """All samplers and versions."""

    def __init__(self, ledger: Ledger, limits: LimitSection) -> None:
        self._ledger = ledger
        self._limits = limits
        self._records: dict[str, SamplerRecord] = {}
        self._versions: dict[str, Version] = {}
        self._inflight: dict[str, SamplerRecord] = {}
        """Per run the newest sampler of kind inflight."""
        self.revive: Callable[[str], Awaitable[None]] | None = None
        """Rebuilds a run, and with it its versions that are not on disk."""

    @property
    def resident(self) -> int:
        """Versions in the runtime's memory."""
        return sum(version.resident_in is not None for version in self._versions.values())

    async def get(self, sampler_id: str, principal: Principal) -> SamplerRecord:
        """The caller's sampler. Raises NotFound, Forbidden."""
        record = await self.find(sampler_id)
        if record is None:
            raise NotFound(f"sampling session {sampler_id!r} is not known to this server")
        if record.owner != principal.owner:
            raise Forbidden(f"sampling session {sampler_id!r} belongs to another API key")
        return record

    async def find(self, sampler_id: str) -> SamplerRecord | None:
        """The sampler, wherever it is."""
        record = self._records.get(sampler_id)
        if record is None:
            query = sa.select(_T).where(_T.c.sampler_id == sampler_id)
            row = await self._ledger.run(lambda connection: connection.execute(query).one_or_none())
            if row is None:
                return None
            if row.kind == "inflight":
                await self.load_run(row.run_id)
            record = self._records.get(sampler_id) or self._adopt(row)
        return record

    async def load_run(self, run_id: str) -> None:
        """Makes the unnamed samplers of a run known."""
        query = (
            sa.select(_T).where(_T.c.run_id == run_id, _T.c.kind.in_(("snapshot", "inflight"))).order_by(_T.c.seq_id)
        )
        for row in await self._ledger.run(lambda connection: list(connection.execute(query))):
            if row.sampler_id not in self._records:
                self._adopt(row)

    def _adopt(self, row: Any) -> SamplerRecord:
        record = SamplerRecord(
            row.sampler_id,
            row.session_id,
            row.owner,
            row.base_model,
            row.requested_model,
            row.model_path,
            row.kind,
            row.version,
            row.run_id,
            row.seq_id,
            row.clones,
            row.created_at,
        )
        folder = Path(row.folder) if row.folder else None
        self._admit(record, folder)
        return record

    def _admit(self, record: SamplerRecord, folder: Path | None) -> Version:
        self._records[record.sampler_id] = record
        unnamed = record.kind in ("snapshot", "inflight")
        version = self._versions.get(record.version)
        if version is None:
            version = Version(record.version, record.base_model, folder, record.run_id if unnamed else None)
            self._versions[record.version] = version
        if record.kind == "inflight" and record.run_id is not None:
            newest = self._inflight.get(record.run_id)
            if newest is None or (newest.seq_id or 0) < (record.seq_id or 0):
                self._inflight[record.run_id] = record
        return version

    def insertion(self, record: SamplerRecord, folder: Path | None) -> Callable[[sa.engine.Connection], Any]:
        """Makes a sampler known and returns the ledger job that records it."""
        self._admit(record, folder)
        statement = sa.insert(_T).values(
            sampler_id=record.sampler_id,
            session_id=record.session_id,
            owner=record.owner,
            base_model=record.base_model,
            requested_model=record.requested_model,
            model_path=record.model_path,
            kind=record.kind,
            version=record.version,
            run_id=record.run_id,
            seq_id=record.seq_id,
            folder=None if folder is None else str(folder),
            clones=0,
            created_at=record.created_at,
        )

        def write(connection: sa.engine.Connection) -> None:
            known = sa.select(_T.c.sampler_id).where(_T.c.sampler_id == record.sampler_id)
            if connection.scalar(known) is None:
                connection.execute(statement)

        return write

    def forget(self, record: SamplerRecord) -> None:
        """Takes back a sampler that could not be recorded."""
        self._records.pop(record.sampler_id, None)

    def keep(self, record: SamplerRecord, folder: Path | None) -> None:
        """Makes a sampler known until the server stops, without a record in the ledger."""
        self._admit(record, folder)

    def version(self, name: str) -> Version | None:
        """A version by name."""
        return self._versions.get(name)

    def version_of(self, record: SamplerRecord) -> Version:
        """The version that a sample of this sampler uses now. Raises Expired."""
        if record.kind == "inflight" and record.run_id is not None:
            record = self._inflight.get(record.run_id, record)
        version = self._versions.get(record.version)
        if version is None or version.gone:
            raise Expired(
                f"the unnamed weights of sampling session {record.sampler_id!r} are no longer kept; "
                "save them with a name, or make a new sampling client"
            )
        return version

    async def join(self, record: SamplerRecord) -> int:
        """A number for one more clone of a sampling client, from 1."""
        record.clones += 1
        number = record.clones
        statement = sa.update(_T).where(_T.c.sampler_id == record.sampler_id).values(clones=number)
        await self._ledger.run(lambda connection: connection.execute(statement))
        return number

    # --- residency ----------------------------------------------------------------------------------------------------

    async def ensure(self, version: Version, link: RuntimeLink) -> None:
        """Makes a version resident in this life of the runtime. Raises RuntimeGone, RuntimeFault."""
        version.used_at = time.monotonic()
        if version.resident_in == link.generation:
            return
        async with version.lock:
            if version.resident_in == link.generation:
                return
            if version.is_base or version.folder is not None:
                folder = version.folder
                if folder is not None and not folder.is_dir():
                    raise RuntimeFault(f"the weights of this sampler were deleted ({version.name})", "user")
                path = None if folder is None else str(folder)
                await link.call(
                    "load_sampler", _CALL_SECONDS, version=version.name, base_model=version.base_model, path=path
                )
                version.resident_in = link.generation
            else:
                assert self.revive is not None and version.run_id is not None
                await self.revive(version.run_id)
                if version.resident_in != link.generation:
                    raise RuntimeFault(f"the unnamed weights {version.name} could not be made again", "server")
        await self.shrink(link)

    def published(self, name: str, generation: int) -> None:
        """The runtime holds a version now."""
        version = self._versions[name]
        version.resident_in = generation
        version.used_at = time.monotonic()

    def saved(self, names: list[str], folder: Path) -> None:
        """Unnamed weights are on disk now."""
        for name in names:
            self._versions[name].folder = folder
        statement = sa.update(_T).where(_T.c.version.in_(names)).values(folder=str(folder))
        self._ledger.post(lambda connection: connection.execute(statement))

    async def shrink(self, link: RuntimeLink) -> None:
        """Drops the least used versions beyond the limit from the runtime's memory."""
        resident = [v for v in self._versions.values() if v.resident_in == link.generation]
        spare = [v for v in resident if v.in_use == 0 and (v.folder is not None or v.is_base)]
        spare.sort(key=lambda v: v.used_at)
        for version in spare[: max(0, len(resident) - self._limits.resident_samplers)]:
            version.resident_in = None
            try:
                await link.call("drop_sampler", _CALL_SECONDS, version=version.name)
            except (RuntimeFault, BackendError, TimeoutError) as error:
                log.warning("version %s could not be dropped: %s", version.name, error)

    async def retire(self, run_id: str, link: RuntimeLink | None, keep: int) -> None:
        """Removes the least used unnamed weights of a run beyond ``keep``."""
        mine = [v for v in self._versions.values() if v.run_id == run_id and not v.gone and v.folder is not None]
        newest = self._inflight.get(run_id)
        mine = [v for v in mine if newest is None or v.name != newest.version]
        mine.sort(key=lambda v: v.used_at)
        for version in mine[: max(0, len(mine) - keep)]:
            if version.in_use:
                continue
            version.gone = True
            folder = version.folder
            if link is not None and version.resident_in == link.generation:
                version.resident_in = None
                try:
                    await link.call("drop_sampler", _CALL_SECONDS, version=version.name)
                except (RuntimeFault, BackendError, TimeoutError) as error:
                    log.warning("version %s could not be dropped: %s", version.name, error)
            shared = any(v.folder == folder and not v.gone for v in self._versions.values())
            if folder is not None and not shared:
                await asyncio.to_thread(remove_tree, folder)

    async def remove_unnamed(self, run_id: str) -> None:
        """Removes the unnamed weights of a run from disk and memory."""
        query = sa.select(_T.c.sampler_id, _T.c.version, _T.c.folder).where(
            _T.c.run_id == run_id, _T.c.kind.in_(("snapshot", "inflight"))
        )
        for row in await self._ledger.run(lambda connection: list(connection.execute(query))):
            self._records.pop(row.sampler_id, None)
            self._versions.pop(row.version, None)
            if row.folder is not None:
                await asyncio.to_thread(remove_tree, Path(row.folder))
        self._inflight.pop(run_id, None)
