"""Snapshots of runs, and rebuilding a run from its last snapshot and the operations after it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..checkpoints.folders import link_tree, remove_tree
from ..ledger import tables
from ..runtime.roles import RuntimeFault
from .execution import pinned
from .link import RuntimeLink
from .run import REPLAYED, Operation, Run
from .run_records import operation_from_row
from .services import Services

log = logging.getLogger(__name__)
_OPS = tables.operations.c

# A snapshot is due, when the run is idle, after any of these; while it is busy after _PATIENCE times as much.
_LOG_SECONDS = 20.0
_LOG_BYTES = 32 * 1024**2
_LOG_OPERATIONS = 400
_LOG_AGE = 600.0
_PATIENCE = 8


def snapshot_due(run: Run, idle: bool) -> bool:
    """Whether a rebuild of the run would take so long, or its log is so large, that a snapshot pays."""
    if run.log_operations == 0:
        return False
    scale = 1 if idle else _PATIENCE
    return (
        run.log_seconds > _LOG_SECONDS * scale
        or run.log_bytes > _LOG_BYTES * scale
        or run.log_operations > _LOG_OPERATIONS * scale
        or (idle and time.monotonic() - run.log_since > _LOG_AGE)
    )


async def rebuild(services: Services, run: Run, link: RuntimeLink) -> None:
    """Brings the run's state into this life of the runtime. Raises RuntimeGone, RuntimeFault, TimeoutError."""
    if run.resident_in == link.generation:
        return
    timeout = services.call_timeout
    started = time.monotonic()
    query = (
        sa.select(tables.operations)
        .where(
            _OPS.target == run.run_id,
            _OPS.seq_id > run.snapshot_seq,
            _OPS.state == "done",
            _OPS.kind.in_(REPLAYED),
        )
        .order_by(_OPS.seq_id)
    )
    rows = await services.ledger.run(lambda connection: list(connection.execute(query)))
    operations = [operation_from_row(row) for row in rows]
    if run.snapshot_folder is not None:
        await link.call("load", timeout, run=run.spec, path=run.snapshot_folder, optimizer=True)
    run.unsaved_versions.clear()
    for kind, group in groupby(operations, key=lambda operation: operation.kind):
        await _repeat(services, run, kind, group, link)
    run.resident_in = link.generation
    if operations or run.snapshot_folder is not None:
        seconds = time.monotonic() - started
        log.info("run %s is back after %d operations in %.1f s", run.run_id, len(operations), seconds)


async def _repeat(services: Services, run: Run, kind: str, group: Iterable[Operation], link: RuntimeLink) -> None:
    timeout = services.call_timeout
    if kind == "forward_backward":
        # One request a call: the same batches as a client that waits for each, and bounded memory.
        for operation in group:
            (result,) = await link.call("forward_backward", timeout, batch=[operation.params["request"]])
            if isinstance(result, RuntimeFault):
                raise result
        return
    for operation in group:
        if kind == "create":
            await link.call("create", timeout, run=run.spec)
        elif kind in ("load_new", "load_weights"):
            folder = await pinned(services, run, operation)
            await link.call(
                "load", timeout, run=run.spec, path=str(folder), optimizer=bool(operation.params["optimizer"])
            )
        elif kind == "optim_step":
            await link.call("optim_step", timeout, run_id=run.run_id, params=operation.params["params"])
        elif kind == "publish":
            await _republish(services, run, operation.params["sampler_id"], link)


async def _republish(services: Services, run: Run, name: str, link: RuntimeLink) -> None:
    version = services.samplers.version(name)
    if version is None or version.gone or version.folder is not None or version.resident_in == link.generation:
        return
    await link.call("publish", services.call_timeout, run_id=run.run_id, version=name)
    services.samplers.published(name, link.generation)
    run.unsaved_versions.append(name)


async def save_versions(services: Services, run: Run, link: RuntimeLink) -> None:
    """Writes published, unsaved sampler weights to disk. Must happen before the run's weights change."""
    if not run.unsaved_versions:
        return
    names = list(run.unsaved_versions)
    folder = services.store.folders.sampler(names[0])
    await asyncio.to_thread(remove_tree, folder)
    # No call to the trainer: the runtime writes aside, and the passes of other runs need not wait for the disk.
    await link.call("save", services.call_timeout, run_id=run.run_id, path=str(folder), kind="sampler")
    services.samplers.saved(names, folder)
    del run.unsaved_versions[: len(names)]
    await services.samplers.shrink(link)
    await services.samplers.retire(run.run_id, link, services.config.limits.ephemeral_samplers_per_run)


async def take_snapshot(services: Services, run: Run, seq_id: int, link: RuntimeLink) -> None:
    """Writes the run's whole state after ``seq_id`` and empties its log."""
    await save_versions(services, run, link)
    folder = services.store.folders.snapshot(run.run_id, f"state-{seq_id}")
    await asyncio.to_thread(remove_tree, folder)
    await services.batcher.other(link, "save", run_id=run.run_id, path=str(folder), kind="training")
    await _note(services, run, seq_id, folder)


async def adopt_snapshot(services: Services, run: Run, seq_id: int, checkpoint: Path) -> None:
    """A training checkpoint holds the run's whole state: links it as the snapshot after ``seq_id``."""
    folder = services.store.folders.snapshot(run.run_id, f"state-{seq_id}")
    await asyncio.to_thread(link_tree, checkpoint, folder)
    await _note(services, run, seq_id, folder)


async def _note(services: Services, run: Run, seq_id: int, folder: Path) -> None:
    def write(connection: Connection) -> None:
        connection.execute(
            sa.update(tables.runs)
            .where(tables.runs.c.run_id == run.run_id)
            .values(snapshot_seq=seq_id, snapshot_folder=str(folder))
        )
        connection.execute(
            sa.update(tables.operations)
            .where(_OPS.target == run.run_id, _OPS.seq_id <= seq_id, _OPS.state != "pending")
            .values(payload=None)
        )

    await services.ledger.run(write)
    run.note_snapshot(seq_id, str(folder))

    def clean() -> None:
        for other in services.store.folders.snapshots(run.run_id).iterdir():
            if other != folder and not other.name.startswith("."):
                remove_tree(other)

    await asyncio.to_thread(clean)
