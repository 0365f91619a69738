"""Housekeeping in the background: expiry, heartbeats, idle runs, old rows."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import sqlalchemy as sa

from ..dispatch.retention import ended_runs, remove_run, save_request_times
from ..errors import BackendError
from ..ledger import tables

if TYPE_CHECKING:
    from .backend import Backend

log = logging.getLogger(__name__)
_TICK = 1.0
_PAUSE = 3.0
"""Seconds by which a tick may be late before the server counts as having been stopped."""
_LAPSE_EVERY = 2
_SLOW_EVERY = 30


class Janitor:
    """Runs for the life of the server."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def run(self) -> None:
        """Ticks each second; the costlier chores come every half minute."""
        tick = 0
        while True:
            before = time.time()
            await asyncio.sleep(_TICK)
            tick += 1
            pause = time.time() - before - _TICK
            if abs(pause) > _PAUSE:
                # Nobody could give a sign of life to a server that was stopped, or whose clock was set.
                log.warning("the clock went on by %.0f s between two looks: lapses of sessions begin anew", pause)
                self._backend.sampling.begin_anew()
            try:
                await self._backend.store.expire()
                if tick % _LAPSE_EVERY == 0:
                    await self._cancel_abandoned_samples()
                if tick % _SLOW_EVERY == 0:
                    self._backend.promises.evict()
                    self._backend.sampling.completions.forget_idle()
                    self._backend.sessions.save_heartbeats()
                    await self._release_idle_runs()
                    save_request_times(self._backend.services, self._backend.training.runs)
                    await self._forget_old_results()
                    await self._remove_ended_runs()
            except (BackendError, OSError, sa.exc.SQLAlchemyError) as error:
                log.warning("housekeeping failed and will be repeated: %s", error)

    async def _cancel_abandoned_samples(self) -> None:
        lapse = self._backend.config.limits.session_lapse_seconds
        cancelled = await self._backend.sampling.cancel_abandoned(self._backend.sessions.last_sign, lapse)
        if cancelled:
            log.info("cancelled %d samples of clients that gave no sign of life for %.0f s", cancelled, lapse)

    async def _release_idle_runs(self) -> None:
        horizon = time.time() - self._backend.config.limits.run_idle_seconds
        for run in self._backend.training.runs:
            if run.last_request_at < horizon:
                await self._backend.training.release(run)
                self._backend.training.forget(run)

    async def _remove_ended_runs(self) -> None:
        """Removes what is only kept to go on with a run, once its session has shown no life for the keeping time."""
        backend = self._backend
        in_memory = {run.run_id for run in backend.training.runs}
        horizon = time.time() - backend.config.limits.result_keep_seconds
        for run_id in await ended_runs(backend.services, horizon):
            if run_id not in in_memory:
                await remove_run(backend.services, run_id)

    async def _forget_old_results(self) -> None:
        """Removes results past their time, but no row that a rebuild or an order still needs."""
        horizon = time.time() - self._backend.config.limits.result_keep_seconds
        ops = tables.operations.c
        contained = (
            sa.select(tables.runs.c.run_id)
            .where(tables.runs.c.run_id == ops.target, tables.runs.c.snapshot_seq >= ops.seq_id)
            .exists()
        )
        results = (
            sa.update(tables.operations)
            .where(ops.finished_at < horizon, ops.result.is_not(None), sa.or_(ops.kind == "sample", contained))
            .values(result=None, payload=None)
        )
        self._backend.ledger.post(lambda connection: connection.execute(results))
