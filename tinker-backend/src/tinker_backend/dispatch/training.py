"""Training runs: accepting their requests, ordering them, and one worker per run that carries them out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import sqlalchemy as sa

from ..errors import BadRequest, Busy, Expired, Forbidden, LedgerError, NotFound, OperationFailure, RuntimeGone
from ..ledger import tables
from ..runtime import messages
from ..runtime.roles import RuntimeFault
from ..server.principal import Principal
from .blame import blame, is_suspect
from .execution import Outcome, execute
from .link import RuntimeLink
from .promises import Promise, insertion, operation_row
from .rebuild import adopt_snapshot, rebuild, save_versions, snapshot_due, take_snapshot
from .run import SEQ_LIMIT, Operation, Run
from .run_records import run_insertion, stored_run
from .services import Services

log = logging.getLogger(__name__)
_IDLE_SECONDS = 1.0
_REBUILD_ATTEMPTS = 12


class TrainingDispatch:
    """All training runs."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._runs: dict[str, Run] = {}
        self._loading: dict[str, asyncio.Future[Run | None]] = {}
        self.pending_bytes = 0
        services.samplers.revive = self._revive

    @property
    def runs(self) -> list[Run]:
        """The runs in memory."""
        return list(self._runs.values())

    # --- finding runs -------------------------------------------------------------------------------------------------

    async def get(self, run_id: str, principal: Principal) -> Run:
        """The caller's run. Raises NotFound, Forbidden."""
        run = self._runs.get(run_id) or await self._load(run_id)
        if run is None:
            raise NotFound(f"model_id {run_id!r} is not known to this server")
        if run.owner != principal.owner:
            raise Forbidden(f"run {run_id!r} belongs to another API key")
        return run

    async def _load(self, run_id: str) -> Run | None:
        """Reads a run and what is left of its log. Two callers share one read."""
        if (loading := self._loading.get(run_id)) is not None:
            return await asyncio.shield(loading)
        loading = self._loading[run_id] = asyncio.ensure_future(self._read(run_id))
        try:
            return await loading
        finally:
            del self._loading[run_id]

    async def _read(self, run_id: str) -> Run | None:
        stored = await stored_run(self._services.ledger, run_id)
        if stored is None:
            return None
        run, unfinished = stored
        await self._services.samplers.load_run(run_id)
        for operation in unfinished:
            self.pending_bytes += operation.size
            self._services.promises.add(operation.promise)
            run.enqueue(operation)
        self._runs[run_id] = run
        self._pump(run)
        return run

    async def resume(self) -> int:
        """After a start: takes up the runs with unfinished operations. Returns how many."""
        ops = tables.operations.c
        query = sa.select(ops.target).where(ops.state == "pending", ops.kind != "sample").distinct()
        targets = await self._services.ledger.run(lambda connection: list(connection.scalars(query)))
        for target in targets:
            await self._load(target)
        return len(targets)

    # --- accepting ----------------------------------------------------------------------------------------------------

    async def create(self, run: Run, kind: str, params: dict[str, Any]) -> Promise:
        """A new run by its operation 0; the existing promise when the run exists already."""
        existing = self._runs.get(run.run_id) or await self._load(run.run_id)
        if existing is not None:
            return await self.submit(existing, 0, kind, params)
        self._runs[run.run_id] = run
        try:
            return await self.submit(run, 0, kind, params, record=run_insertion(run))
        except BaseException:
            self._runs.pop(run.run_id, None)
            raise

    async def submit(
        self,
        run: Run,
        seq_id: int | None,
        kind: str,
        params: dict[str, Any],
        tokens: int = 0,
        record: Callable[[sa.engine.Connection], object] | None = None,
    ) -> Promise:
        """Stores an operation and queues it. The same seq_id again yields the same promise.

        ``record`` is a further ledger job that is committed together with the operation.
        """
        if seq_id is None:
            seq_id = run.highest_seen + 1
        if (accepting := run.accepting.get(seq_id)) is not None:
            return await asyncio.shield(accepting)
        if run.is_used(seq_id):
            return await self._earlier(run, seq_id, kind)
        if run.failed is not None:
            raise BadRequest(f"run {run.run_id} was never made: {run.failed}")
        if self.pending_bytes > self._services.config.limits.pending_bytes:
            raise Busy("the server holds as many unfinished training requests as it may; try again in a moment")
        promise = Promise(f"{run.run_id}:{seq_id}", run.owner, kind, run.run_id, seq_id)
        accepted: asyncio.Future[Promise] = asyncio.get_running_loop().create_future()
        run.accepting[seq_id] = accepted
        try:
            payload = messages.pack(params)
            insert = insertion(operation_row(promise, run.session_id, payload, tokens=tokens))

            def write(connection: sa.engine.Connection) -> None:
                if record is not None:
                    record(connection)
                insert(connection)

            await self._services.ledger.run(write)
        except BaseException as error:
            accepted.set_exception(error)
            accepted.exception()
            raise
        finally:
            del run.accepting[seq_id]
        accepted.set_result(promise)
        self._services.promises.add(promise)
        self.pending_bytes += len(payload)
        run.last_request_at = time.time()
        run.enqueue(Operation(seq_id, kind, params, promise, tokens, len(payload)))
        self._pump(run)
        return promise

    async def _earlier(self, run: Run, seq_id: int, kind: str) -> Promise:
        try:
            promise = await self._services.promises.get(f"{run.run_id}:{seq_id}", Principal(run.owner))
        except NotFound:
            raise BadRequest(
                f"seq_id {seq_id} of run {run.run_id} was used up, by a request that was refused or that came too "
                f"late; the next free one is {run.highest_seen + 1}"
            ) from None
        except Expired as error:
            raise Expired(f"seq_id {seq_id} of run {run.run_id}: {error}") from None
        if promise.kind != kind:
            raise BadRequest(
                f"seq_id {seq_id} of run {run.run_id} belongs to a {promise.kind} request already; "
                f"the next free one is {run.highest_seen + 1}"
            )
        return promise

    def refuse(self, run: Run, seq_id: int | None) -> None:
        """A request was refused at the door: its seq_id is used up, and those behind it go on."""
        if seq_id is None or seq_id in run.accepting or run.is_used(seq_id) or seq_id >= SEQ_LIMIT:
            return
        promise = Promise(f"{run.run_id}:{seq_id}", run.owner, "refused", run.run_id, seq_id)
        self._services.ledger.post(insertion(operation_row(promise, run.session_id, None, state="refused")))
        run.refuse(seq_id)
        self._pump(run)

    # --- working ------------------------------------------------------------------------------------------------------

    def _pump(self, run: Run) -> None:
        loop = asyncio.get_running_loop()
        if run.gap_timer is not None:
            run.gap_timer.cancel()
            run.gap_timer = None
        if run.held:
            run.gap_timer = loop.call_later(self._services.config.limits.gap_seconds, self._give_up_gap, run)
        if run.ready:
            self._start_worker(run)

    def _start_worker(self, run: Run) -> asyncio.Task[None]:
        if run.worker is None or run.worker.done():
            run.worker = asyncio.create_task(self._work(run), name=f"run {run.run_id}")
        return run.worker

    def _give_up_gap(self, run: Run) -> None:
        missing = run.next_seq
        for operation in run.skip_gap():
            self._finish(
                operation,
                Outcome(
                    OperationFailure(
                        f"seq_id {missing} of run {run.run_id} did not come within "
                        f"{self._services.config.limits.gap_seconds:.0f} s, so seq_id {operation.seq_id}, which follows "
                        "it, was not run; send it again under a new seq_id",
                        "user",
                    )
                ),
                None,
            )
        self._pump(run)

    async def _work(self, run: Run) -> None:
        try:
            while await self._step(run):
                pass
        except Exception:
            log.exception("the worker of run %s failed", run.run_id)
            while run.ready:
                failure = OperationFailure("the server failed on this operation; see its log", "server")
                self._finish(run.ready.popleft(), Outcome(failure), None)
        finally:
            if run.idle_timer is not None:
                run.idle_timer.cancel()
            run.idle_timer = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._idle, run)

    async def _step(self, run: Run) -> bool:
        """Carries out what is next. Returns False when nothing is left to do."""
        services = self._services
        try:
            link = await services.supervisor.ready()
            await rebuild(services, run, link)
            run.rebuild_failures = 0
        except (RuntimeGone, TimeoutError, RuntimeFault) as error:
            return self._cannot_rebuild(run, error)
        if not run.ready:
            await self._quietly(save_versions(services, run, link), run)
            return bool(run.ready)
        if run.failed is not None:
            self._finish(
                run.ready.popleft(), Outcome(OperationFailure(f"the run was never made: {run.failed}", "user")), None
            )
            return True
        group = self._group(run)
        suspect = is_suspect(group[0])
        started, clock = time.time(), time.monotonic()
        try:
            if group[0].kind in ("optim_step", "load_weights", "unload"):
                await save_versions(services, run, link)
            async with services.gate.alone() if suspect else services.gate.shared():
                outcomes = await execute(services, run, group, link)
        except RuntimeGone as gone:
            if gone.in_flight:
                self._blame(run, group, suspect)
            return True
        except TimeoutError:
            services.supervisor.kill(f"{group[0].kind} of {run.run_id} took over {services.call_timeout:.0f} s")
            self._blame(run, group, suspect)
            return True
        except RuntimeFault as fault:  # of save_versions
            outcomes = [Outcome(OperationFailure(str(fault), fault.category))] * len(group)
        seconds = (time.monotonic() - clock) / len(group)
        for operation, outcome in zip(group, outcomes, strict=True):
            run.ready.popleft()
            failed = isinstance(outcome.result, OperationFailure)
            if not failed:
                run.note_applied(operation, seconds)
            run.applied_seq = operation.seq_id
            if failed and operation.kind in ("create", "load_new"):
                self._mark_failed(run, outcome.result.message)
            self._finish(operation, outcome, started)
        await self._quietly(self._maybe_snapshot(run, group[-1], outcomes[-1], link), run)
        return True

    def _group(self, run: Run) -> list[Operation]:
        """The next operation; neighbouring forward_backwards (chunks of one call) go together."""
        head = run.ready[0]
        if head.kind not in ("forward_backward", "forward") or is_suspect(head):
            return [head]
        return list(takewhile(lambda o: o.kind in ("forward_backward", "forward") and not is_suspect(o), run.ready))

    def _blame(self, run: Run, group: list[Operation], alone: bool) -> None:
        for operation in group:
            failure = blame(operation, self._services.supervisor.last_death, alone)
            if failure is not None:
                run.ready.remove(operation)
                self._finish(operation, Outcome(failure), None)

    def _cannot_rebuild(self, run: Run, error: Exception) -> bool:
        supervisor = self._services.supervisor
        if isinstance(error, TimeoutError):
            supervisor.kill(f"rebuilding run {run.run_id} took over {self._services.call_timeout:.0f} s for one call")
        run.rebuild_failures += 1
        fatal = supervisor.state in ("broken", "stopped") or isinstance(error, RuntimeFault)
        if not fatal and run.rebuild_failures < _REBUILD_ATTEMPTS:
            return True
        log.error("run %s cannot be rebuilt: %s", run.run_id, error)
        if supervisor.state == "stopped":
            return False
        if not run.ready:
            return False
        operation = run.ready.popleft()
        if operation.kind in ("create", "load_new"):
            self._mark_failed(run, str(error))
        self._finish(operation, Outcome(OperationFailure(f"the run cannot go on: {error}", "server")), None)
        return bool(run.ready)

    def _mark_failed(self, run: Run, message: str) -> None:
        run.failed = message
        statement = sa.update(tables.runs).where(tables.runs.c.run_id == run.run_id).values(failed=message)
        self._services.ledger.post(lambda connection: connection.execute(statement))

    def _finish(self, operation: Operation, outcome: Outcome, started: float | None) -> None:
        self.pending_bytes -= operation.size
        self._services.promises.settle(operation.promise, outcome.result, outcome.tokens, started, *outcome.records)

    # --- snapshots ----------------------------------------------------------------------------------------------------

    async def _maybe_snapshot(self, run: Run, last: Operation, outcome: Outcome, link: RuntimeLink) -> None:
        if last.kind == "save_weights" and not isinstance(outcome.result, OperationFailure) and run.log_operations:
            from ..checkpoints.paths import TinkerPath

            await save_versions(self._services, run, link)
            checkpoint = await self._services.store.find(TinkerPath.parse(outcome.result["path"]))
            if checkpoint is not None:
                await adopt_snapshot(self._services, run, last.seq_id, checkpoint.folder)
        elif snapshot_due(run, idle=False):
            await take_snapshot(self._services, run, run.applied_seq, link)
        if last.kind == "unload":
            await self._write_out(run, link)

    def _idle(self, run: Run) -> None:
        if (run.worker is None or run.worker.done()) and snapshot_due(run, idle=True):
            run.worker = asyncio.create_task(self._snapshot_when_idle(run))

    async def _snapshot_when_idle(self, run: Run) -> None:
        if run.resident_in == self._services.supervisor.generation:
            try:
                link = await self._services.supervisor.ready()
            except RuntimeGone:
                return
            if run.resident_in == link.generation:
                await self._quietly(take_snapshot(self._services, run, run.applied_seq, link), run)
        if run.ready:
            await self._work(run)

    async def release(self, run: Run) -> None:
        """Writes an idle run out and takes it from the runtime's memory; its next request brings it back."""
        if run.resident_in is None or run.ready or (run.worker is not None and not run.worker.done()):
            return
        run.worker = asyncio.create_task(self._release(run))
        await run.worker

    async def _release(self, run: Run) -> None:
        link = await self._services.supervisor.ready()
        if run.resident_in == link.generation:
            await self._quietly(self._write_out(run, link), run)
        else:
            run.resident_in = None
        if run.ready:
            await self._work(run)

    async def _write_out(self, run: Run, link: RuntimeLink) -> None:
        await save_versions(self._services, run, link)
        if run.log_operations:
            await take_snapshot(self._services, run, run.applied_seq, link)
        run.resident_in = None
        await self._services.batcher.other(link, "drop_run", run_id=run.run_id)

    def forget(self, run: Run) -> None:
        """Takes a run that was released from the server's memory; the ledger has it."""
        busy = run.ready or run.held or run.accepting or (run.worker is not None and not run.worker.done())
        if run.resident_in is None and not busy:
            if run.idle_timer is not None:
                run.idle_timer.cancel()
            self._runs.pop(run.run_id, None)

    async def _quietly(self, work: Any, run: Run) -> None:
        """Awaits housekeeping of a run: its failure is logged and tried again later, the client is not concerned."""
        try:
            await work
        except (RuntimeGone, RuntimeFault, TimeoutError, LedgerError, OSError) as error:
            log.warning("housekeeping of run %s failed and will be repeated: %s", run.run_id, error)

    async def _revive(self, run_id: str) -> None:
        run = self._runs.get(run_id) or await self._load(run_id)
        if run is None:
            return
        if run.resident_in != self._services.supervisor.generation:
            await asyncio.shield(self._start_worker(run))

    async def stop(self) -> None:
        """Cancels the workers."""
        for run in self._runs.values():
            for timer in (run.gap_timer, run.idle_timer):
                if timer is not None:
                    timer.cancel()
            if run.worker is not None:
                run.worker.cancel()
