"""Sampling: accepted requests go to the runtime at once, many in flight; the runtime batches them by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from ..errors import BadRequest, Busy, Expired, OperationFailure, RuntimeGone, Unavailable
from ..ledger import tables
from ..runtime import messages
from ..runtime.roles import RuntimeFault, SamplePart, SampleRequest, SampleResult
from ..server.principal import Principal
from .blame import blame, is_suspect
from .completions import CompletionBook
from .promises import Promise, Tokens, insertion, operation_row, promise_from_row
from .samplers import SamplerRecord
from .services import Services

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Sample:
    """One accepted asample."""

    request: SampleRequest
    record: SamplerRecord
    promise: Promise
    deaths: int = 0
    died_alone: int = 0
    task: asyncio.Task[None] | None = None
    on_part: Callable[[SamplePart], None] | None = None


class SamplingDispatch:
    """All samples."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._samples: dict[str, Sample] = {}
        self._direct = 0
        self._began_at = time.time()
        self._cancelling: set[asyncio.Task[None]] = set()
        self._accepting: dict[str, asyncio.Future[Promise]] = {}
        self.completions = CompletionBook(services.ledger)
        services.promises.listeners.append(self.completions.note)

    @property
    def pending(self) -> int:
        """Accepted and unfinished samples."""
        return len(self._samples) + self._direct

    async def resume(self) -> int:
        """After a start: takes up unfinished samples. Returns how many."""
        ops = tables.operations.c
        query = sa.select(tables.operations).where(ops.state == "pending", ops.kind == "sample")
        rows = await self._services.ledger.run(lambda connection: list(connection.execute(query)))
        for row in rows:
            promise = promise_from_row(row)
            record = await self._services.samplers.find(row.target)
            self._services.promises.add(promise)
            if record is None:
                self._services.promises.settle(promise, OperationFailure("its sampler is no longer known", "server"))
                continue
            request: SampleRequest = messages.unpack(row.payload)["request"]
            self._begin(Sample(request, record, promise))
        return len(rows)

    def place(self, record: SamplerRecord, seq_id: int | None) -> tuple[int, str]:
        """The seq_id (a fresh one when the client does not number) and the request_id of a sample."""
        if seq_id is None:
            seq_id = record.local_seq()
        return seq_id, f"{record.sampler_id}:{seq_id}"

    async def earlier(self, request_id: str, principal: Principal) -> Promise | None:
        """The promise of a request that was accepted before."""
        if (accepting := self._accepting.get(request_id)) is not None:
            return await asyncio.shield(accepting)
        known = self._services.promises.known(request_id)
        if known is not None and known.owner == principal.owner:
            return known
        return None

    async def submit(self, record: SamplerRecord, seq_id: int, request: SampleRequest) -> Promise:
        """Stores a sample and sends it to the runtime. The same request_id again yields the same promise."""
        request_id = request.request_id
        self._check_room()
        promise = Promise(request_id, record.owner, "sample", record.sampler_id, seq_id)
        accepted: asyncio.Future[Promise] = asyncio.get_running_loop().create_future()
        self._accepting[request_id] = accepted
        row = operation_row(promise, record.session_id, messages.pack({"request": request}), tokens=request.tokens.size)
        try:
            await self._services.ledger.run(insertion(row))
        except sa.exc.IntegrityError:
            # Accepted before, and no longer in memory.
            promise = await self._services.promises.get(request_id, Principal(record.owner))
            accepted.set_result(promise)
            return promise
        except BaseException as error:
            accepted.set_exception(error)
            accepted.exception()
            raise
        finally:
            del self._accepting[request_id]
        accepted.set_result(promise)
        self._services.promises.add(promise)
        self._begin(Sample(request, record, promise))
        return promise

    def _begin(self, sample: Sample) -> None:
        self._samples[sample.promise.request_id] = sample
        sample.task = asyncio.create_task(self._run(sample))

    async def _run(self, sample: Sample) -> None:
        started = time.time()
        tokens = Tokens()
        try:
            result: SampleResult | OperationFailure = await self._result(sample)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("sample %s failed", sample.promise.request_id)
            result = OperationFailure("the server failed on this sample; see its log", "server")
        finally:
            self._samples.pop(sample.promise.request_id, None)
        if isinstance(result, SampleResult):
            written = sum(sequence.tokens.size for sequence in result.sequences)
            tokens = Tokens(sample.request.tokens.size, written, result.prompt_cache_hit_tokens)
        self._services.promises.settle(sample.promise, result, tokens, started)

    async def _result(self, sample: Sample) -> SampleResult | OperationFailure:
        services = self._services
        while True:
            suspect = is_suspect(sample)
            try:
                link = await services.supervisor.ready()
            except RuntimeGone as gone:
                return OperationFailure(str(gone), "server")
            version = None
            try:
                version = services.samplers.version_of(sample.record)
                version.in_use += 1
                await services.samplers.ensure(version, link)
                async with services.gate.alone() if suspect else services.gate.shared():
                    request = replace(sample.request, sampler=version.name)
                    params: dict[str, Any] = {"request": request}
                    if sample.on_part is not None:
                        params["stream"] = True
                    result: SampleResult = await link.call(
                        "sample", services.call_timeout, on_part=sample.on_part, **params
                    )
                    return result
            except RuntimeGone as gone:
                if gone.in_flight and (failure := blame(sample, services.supervisor.last_death, suspect)):
                    return failure
            except TimeoutError:
                services.supervisor.kill(f"sample {sample.promise.request_id} took over {services.call_timeout:.0f} s")
                if failure := blame(sample, None, suspect):
                    return failure
            except RuntimeFault as fault:
                return OperationFailure(str(fault), fault.category)
            except Expired as error:
                return OperationFailure(str(error), "user")
            finally:
                if version is not None:
                    version.in_use -= 1

    def begin_anew(self) -> None:
        """The time in which clients must give a sign of life begins now."""
        self._began_at = time.time()

    async def cancel_abandoned(self, last_sign: Callable[[str], float], lapse: float) -> int:
        """Cancels the samples whose client has given no sign of life for ``lapse`` seconds. Returns how many.

        ``last_sign``: when a session last beat or asked for work. A poll of the sample counts too, and so does its
        acceptance; after a restart or a pause of the server the time begins anew.
        """
        horizon = time.time() - lapse
        if self._began_at > horizon:
            return 0
        abandoned = [
            request_id
            for request_id, sample in self._samples.items()
            if max(last_sign(sample.record.session_id), self._last_asked(sample.promise)) < horizon
            and not sample.promise.waiters
        ]
        reason = f"cancelled: its client gave no sign of life for {lapse:.0f} s"
        return sum([await self.cancel(request_id, reason) for request_id in abandoned])

    def _last_asked(self, promise: Promise) -> float:
        """When its client sent the sample or last asked how it stands."""
        return max(promise.created_at, promise.asked_at, self.completions.asked_at(promise))

    async def cancel(self, request_id: str, reason: str = "cancelled by the client") -> bool:
        """Ends an unfinished sample. Returns whether there was one."""
        sample = self._samples.pop(request_id, None)
        if sample is None:
            return False
        if sample.task is not None:
            sample.task.cancel()
        self._services.promises.settle(sample.promise, OperationFailure(reason, "user"))
        await self._cancel_in_runtime(request_id)
        return True

    async def _cancel_in_runtime(self, request_id: str) -> None:
        try:
            link = await self._services.supervisor.ready()
            await link.call("cancel", 30, request_id=request_id)
        except (RuntimeGone, RuntimeFault, TimeoutError) as error:
            log.warning("the runtime did not cancel %s: %s", request_id, error)

    def _check_room(self) -> None:
        if self.pending >= self._services.config.limits.pending_samples:
            raise Busy("the server holds as many unfinished samples as it may; try again in a moment")

    async def direct(
        self, record: SamplerRecord, request: SampleRequest, on_part: Callable[[SamplePart], None] | None = None
    ) -> SampleResult:
        """A sample whose caller waits for it and fetches nothing later: no promise, no record of it.

        ``on_part`` gets tokens as they are sampled; after a death of the runtime they come again from the start.
        Cancelling the call cancels the sample. Raises Busy, BadRequest (it cannot be served), Unavailable (it failed).
        """
        self._check_room()
        promise = Promise(request.request_id, record.owner, "sample", record.sampler_id, 0)
        self._direct += 1
        try:
            result = await self._result(Sample(request, record, promise, on_part=on_part))
        except asyncio.CancelledError:
            cancelling = asyncio.create_task(self._cancel_in_runtime(request.request_id))
            self._cancelling.add(cancelling)
            cancelling.add_done_callback(self._cancelling.discard)
            raise
        finally:
            self._direct -= 1
        if isinstance(result, OperationFailure):
            raise (BadRequest if result.category == "user" else Unavailable)(result.message)
        return result

    async def stop(self) -> None:
        """Cancels the tasks; the ledger keeps the samples."""
        for sample in list(self._samples.values()):
            if sample.task is not None:
                sample.task.cancel()
