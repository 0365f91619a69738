"""The Sampler role over vLLM replicas: routing, versions on every replica, and replicas that die.

Replicas are independent. One that is lost is replaced, learns all versions again, and its requests are sent again; every
request carries a seed, so the answer is the one it would have been.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import ray

from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.ray.ray_cluster import ActorLost, RayCluster, kill, raised_by, wait_for, why_lost
from tinker_backend.runtime.ray.vllm_replica import ReplicaSettings, ServedVersion, VllmReplica
from tinker_backend.runtime.ray.weight_broadcast import Channel, manifest
from tinker_backend.runtime.roles import RuntimeFault, SampleRequest, SampleResult
from tinker_backend.runtime.sample_checks import check_request

log = logging.getLogger(__name__)

_CONCURRENCY = 1000
_MOST_ATTEMPTS = 4
_STICKY_TOKENS = 256
_UNEVEN = 8
"""A replica keeps requests with a prefix that it has seen until it has so many more than the idlest one."""
_POLL_SECONDS = 1.0
_CLOSE_SECONDS = 4.0
"""How long replicas may take to end by themselves; the server waits 10 seconds for its runtime."""
_PATIENCE_SECONDS = 5.0
"""How long a new replica waits for folders that others have read before it."""


@dataclass(eq=False)
class _Pending:
    request: SampleRequest
    version: ServedVersion
    max_tokens: int
    reply: Callable[[SampleResult | RuntimeFault], None]
    deadline: float
    attempts: int = 0
    replica: int = -1


@dataclass(eq=False)
class _Replica:
    actor: Any
    generation: int = 0
    up: bool = False
    failures: int = 0
    pending: dict[str, _Pending] = field(default_factory=dict)


class VllmSampler:
    """Thread-safe: the engine's threads call it, Ray's threads bring the answers."""

    def __init__(self, cluster: RayCluster, settings: ReplicaSettings, base: BaseModel) -> None:
        self.cluster, self.settings, self.base = cluster, settings, base
        self.versions: dict[str, ServedVersion] = {}
        self._numbers = itertools.count(1)
        self._replicas: list[_Replica] = []
        self._lock = threading.RLock()
        self._parked: list[_Pending] = []
        self._closed = threading.Event()
        self._settled = threading.Condition()
        """Guards the next two: what sleeps and wakes, and what starts, keep out of each other's way."""
        self._asleep = False
        self._starting = 0
        self._answers: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """What Ray's threads bring: one that called Ray itself, as a lost replica asks for, would wait for itself."""
        self.broken: str | None = None
        """Why no replica can be started any more."""

    # --- life

    def open(self) -> None:
        """Starts all replicas. Raises ActorLost or what a replica raised."""
        started = time.monotonic()
        seats = self.cluster.placement.infer
        self._replicas = [_Replica(self._start(number)) for number in range(len(seats))]
        wait_for([r.actor.open.remote() for r in self._replicas], self.cluster.config.start_timeout_seconds)
        for replica in self._replicas:
            replica.up = True
        threading.Thread(target=self._watch, name="replica-watch", daemon=True).start()
        threading.Thread(target=self._take_answers, name="replica-answers", daemon=True).start()
        log.info("%d replicas are up after %.1f s", len(seats), time.monotonic() - started)

    def _start(self, number: int) -> Any:
        seat = self.cluster.placement.infer[number]
        variables = {"VLLM_NO_USAGE_STATS": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
        if self.cluster.placement.nodes == 1:
            variables["VLLM_HOST_IP"] = "127.0.0.1"
        if seat.port is not None:
            variables["VLLM_PORT"] = str(seat.port)
        if not self.cluster.placement.on_gpus:
            gigabytes = str(self.settings.cpu_cache_gigabytes)
            variables |= {"VLLM_CPU_KVCACHE_SPACE": gigabytes, "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
            variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
            # The engine's own process may be the worker, too, and a first sample need not wait for a C++ compiler.
            variables |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1"}
        return self.cluster.actor(VllmReplica, seat, self.settings, variables=variables, concurrency=_CONCURRENCY)

    def close(self) -> None:
        """Ends all replicas."""
        self._closed.set()
        with self._settled:
            self._settled.notify_all()
        self._answers.put(None)
        closing = [replica.actor.close.remote() for replica in self._replicas if replica.up]
        with suppress(ActorLost, RuntimeFault):
            wait_for(closing, _CLOSE_SECONDS)
        kill([replica.actor for replica in self._replicas])

    def pids(self) -> list[int]:
        """Process ids of the replicas."""
        return [int(pid) for pid in wait_for([r.actor.ping.remote() for r in self._replicas], 60)]

    @property
    def running(self) -> int:
        """Requests that are not answered yet."""
        with self._lock:
            return len(self._parked) + sum(len(replica.pending) for replica in self._replicas)

    # --- versions

    def _enlist(self, version: str, path: str | None, full: bool) -> tuple[ServedVersion, list[Any]]:
        """Notes a new version; the replicas that must learn of it."""
        with self._lock:
            if version in self.versions:
                raise RuntimeFault(
                    f"sampler version {version!r} exists already; every version needs a new name", "user"
                )
            served = ServedVersion(version, next(self._numbers), path, full)
            self.versions[version] = served
            return served, [replica.actor for replica in self._replicas if replica.up]

    def receive(
        self, version: str, path: str, host: tuple[str, int], device: str, send: Callable[[Channel], None]
    ) -> None:
        """Takes all weights of a new version from a channel that ``send`` fills; ``path`` is where its files will be."""
        served, living = self._enlist(version, path, True)
        workers, seconds = len(self.cluster.placement.infer[0].devices), self.settings.publish_seconds
        channel = Channel(*host, 1 + workers * len(living), device, seconds)
        items, dtype = manifest(self.base.architecture), str(self.base.dtype).removeprefix("torch.")
        started = time.monotonic()
        try:
            references = [
                actor.receive.remote(served, items, dtype, channel, 1 + workers * number)
                for number, actor in enumerate(living)
            ]
            send(channel)
            wait_for(references, seconds)
        except BaseException:
            with self._lock:
                self.versions.pop(version, None)
            raise
        log.info("version %s was broadcast to %d replicas in %.2f s", version, len(living), time.monotonic() - started)

    def load(self, version: str, path: str | None, full: bool) -> None:
        """Makes a folder (None: the base) known under a new name on every replica."""
        served, living = self._enlist(version, path, full)
        try:
            seconds = wait_for(
                [actor.load.remote(served) for actor in living], self.cluster.config.call_timeout_seconds
            )
        except ActorLost as error:
            # The replacement learns all versions before it gets requests.
            log.warning("a replica was lost while it loaded %s: %s", version, error)
            return
        except BaseException:
            with self._lock:
                self.versions.pop(version, None)
            raise
        log.info("version %s is served by %d replicas (%.3f s)", version, len(living), max(seconds, default=0.0))

    def drop(self, version: str) -> ServedVersion | None:
        """Forgets a version; its running requests are cancelled."""
        with self._lock:
            served = self.versions.pop(version, None)
            if served is None:
                return None
            found = [p for p in (*self._parked, *self._all_pending()) if p.version is served]
            living = [replica.actor for replica in self._replicas if replica.up]
        for pending in found:
            self.cancel(pending.request.request_id)
            self._settle(pending, RuntimeFault(f"sampler {version!r} was dropped while it was sampling", "user"))
        for actor in living:
            actor.drop.remote(served)
        return served

    def _all_pending(self) -> list[_Pending]:
        return [pending for replica in self._replicas for pending in replica.pending.values()]

    # --- requests

    def sample(self, request: SampleRequest, reply: Callable[[SampleResult | RuntimeFault], None]) -> None:
        """Sends a request to a replica; ``reply`` is called once, on another thread.

        Raises RuntimeFault (user) at once when the request is wrong.
        """
        max_tokens = check_request(request, self.base)
        if request.seed is None:
            request = replace(request, seed=int.from_bytes(os.urandom(7), "little") >> 1)
        if max_tokens + len(request.tokens) > self.base.context:
            max_tokens = self.base.context - len(request.tokens)
        deadline = time.monotonic() + self.cluster.config.call_timeout_seconds
        with self._lock:
            version = self.versions.get(request.sampler)
            if version is None:
                raise RuntimeFault(f"sampler {request.sampler!r} is not loaded in the runtime", "server")
            if self.broken is not None:
                raise RuntimeFault(f"sampling is not possible: {self.broken}", "server")
            pending = _Pending(request, version, max_tokens, reply, deadline)
        if max_tokens == 0 and not (request.prompt_logprobs or request.topk_prompt_logprobs):
            # vLLM samples at least one token; nothing is asked of it here.
            pending.max_tokens = 0
        self._send(pending)

    def cancel(self, request_id: str) -> None:
        """Stops a request wherever it is; it is answered with a RuntimeFault."""
        with self._lock:
            for replica in self._replicas:
                if request_id in replica.pending and replica.up:
                    replica.actor.cancel.remote(request_id)
            parked = [p for p in self._parked if p.request.request_id == request_id]
        for pending in parked:
            self._settle(pending, RuntimeFault("the request was cancelled", "user"))

    def _send(self, pending: _Pending) -> None:
        with self._lock:
            number = self._route(pending)
            if number is None:
                pending.replica = -1
                self._parked.append(pending)
                return
            replica = self._replicas[number]
            pending.attempts += 1
            pending.replica = number
            replica.pending[pending.request.request_id] = pending
            reference = replica.actor.sample.remote(pending.request, pending.version, pending.max_tokens)
            generation = replica.generation
        future: Future[Any] = reference.future()
        future.add_done_callback(
            lambda done: self._answers.put(lambda: self._answered(pending, number, generation, done))
        )

    def _take_answers(self) -> None:
        while (answer := self._answers.get()) is not None:
            try:
                answer()
            except Exception:
                log.exception("an answer could not be handed on")

    def _route(self, pending: _Pending) -> int | None:
        """The replica that has probably cached the prefix, unless it is much busier than another."""
        living = [number for number, replica in enumerate(self._replicas) if replica.up]
        if not living:
            return None
        version = pending.version
        key = version.path or "" if version.full else ""
        if not version.full:
            head = np.ascontiguousarray(np.asarray(pending.request.tokens[:_STICKY_TOKENS], dtype="<i4"))
            key = f"{version.name}/{zlib.crc32(head.tobytes())}"
        ranked = sorted(living, key=lambda number: zlib.crc32(f"{number}/{key}".encode()))
        least = min(len(self._replicas[number].pending) for number in living)
        for number in ranked:
            if len(self._replicas[number].pending) <= least + _UNEVEN:
                return number
        return ranked[0]

    def _answered(self, pending: _Pending, number: int, generation: int, done: Future[Any]) -> None:
        try:
            self._settle(pending, done.result())
        except ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if "EngineDead" in type(cause or error).__name__ or "EngineDead" in str(error):
                self._lost(number, generation, "its engine died")
            else:
                self._settle(pending, _fault(raised_by(error)))
        except ray.exceptions.RayError as error:
            self._lost(number, generation, why_lost(error))
        except Exception as error:
            log.exception("an answer could not be read")
            self._settle(pending, RuntimeFault(f"sampling failed: {type(error).__name__}: {error}"))

    def _settle(self, pending: _Pending, outcome: SampleResult | RuntimeFault) -> None:
        with self._lock:
            if pending in self._parked:
                self._parked.remove(pending)
            elif 0 <= pending.replica < len(self._replicas):
                held = self._replicas[pending.replica].pending
                if held.get(pending.request.request_id) is not pending:
                    return
                del held[pending.request.request_id]
            else:
                return
        pending.reply(outcome)

    # --- replicas that die

    def _lost(self, number: int, generation: int, reason: str) -> None:
        with self._lock:
            replica = self._replicas[number]
            if replica.generation != generation or self._closed.is_set():
                return
            replica.generation += 1
            replica.up = False
            orphans, replica.pending = list(replica.pending.values()), {}
        log.error("replica %d is lost (%s); %d requests are sent again", number, reason, len(orphans))
        kill([replica.actor])
        threading.Thread(target=self._replace, args=(number,), name=f"replica-{number}", daemon=True).start()
        for pending in orphans:
            pending.replica = -1
            if pending.attempts >= _MOST_ATTEMPTS:
                pending.reply(RuntimeFault(f"sampling failed: {pending.attempts} replicas were lost with this request"))
            else:
                self._send(pending)

    def _replace(self, number: int) -> None:
        replica, seconds = self._replicas[number], self.cluster.config.start_timeout_seconds
        while not self._closed.is_set():
            try:
                with self._start_turn():
                    self._bring_back(number, seconds)
                return
            except (ActorLost, RuntimeFault) as error:
                replica.failures += 1
                log.error("replica %d could not be replaced: %s", number, error)
                if replica.failures >= _MOST_ATTEMPTS:
                    self._give_up(f"replica {number} could not be replaced: {error}")
                    return
                self._closed.wait(2.0**replica.failures)

    def _bring_back(self, number: int, seconds: float) -> None:
        """Starts a replica in place of a lost one, teaches it all versions and sends it what waits."""
        replica, actor = self._replicas[number], self._start(number)
        wait_for([actor.open.remote()], seconds)
        with self._lock:
            known = list(self.versions.values())
        for version, loaded in [(version, actor.load.remote(version, _PATIENCE_SECONDS)) for version in known]:
            try:
                wait_for([loaded], seconds)
            except RuntimeFault as fault:
                # A saved folder may have been deleted since; that is no matter of the other versions.
                log.warning("replica %d starts without version %s: %s", number, version.name, fault)
        with self._lock:
            replica.actor, replica.up, replica.failures = actor, True, 0
            missed = [version for version in self.versions.values() if version not in known]
            parked, self._parked = self._parked, []
        for version in missed:
            actor.load.remote(version)
        log.info("replica %d is back", number)
        for pending in parked:
            self._send(pending)

    def _give_up(self, reason: str) -> None:
        """One replica less; without any, nobody waits any longer."""
        with self._lock:
            if any(replica.up for replica in self._replicas):
                return
            self.broken = reason
            parked = list(self._parked)
        for pending in parked:
            self._settle(pending, RuntimeFault(f"sampling is not possible: {reason}"))

    def _watch(self) -> None:
        """A request that has no answer by its deadline is a sign of a replica that hangs."""
        while not self._closed.wait(_POLL_SECONDS):
            now = time.monotonic()
            with self._lock:
                late = [p for p in (*self._parked, *self._all_pending()) if p.deadline < now]
                generations = {p.replica: self._replicas[p.replica].generation for p in late if p.replica >= 0}
            seconds = self.cluster.config.call_timeout_seconds
            for pending in late:
                fault = RuntimeFault(f"no sample within cluster.call_timeout_seconds {seconds:.0f} s")
                self._settle(pending, fault)
            for number, generation in generations.items():
                self._lost(number, generation, f"no answer within {seconds:.0f} s")

    # --- turns with a colocated trainer

    def sleep(self) -> None:
        """All replicas give their memory back. Nothing may be running; one that is being replaced is waited for first."""
        with self._settled:
            self._asleep = True
            self._settled.wait_for(lambda: self._starting == 0, self.cluster.config.start_timeout_seconds)
        try:
            self._everywhere("sleep")
        except BaseException:
            self._woken()
            raise

    def wake(self) -> None:
        """All replicas take their memory again; those that were lost meanwhile are replaced from now on."""
        self._everywhere("wake")
        self._woken()

    def _woken(self) -> None:
        with self._settled:
            self._asleep = False
            self._settled.notify_all()

    def _everywhere(self, method: str) -> None:
        """Asks all replicas; one that does not answer is lost, and the others go on."""
        with self._lock:
            living = [(number, one.generation, one.actor) for number, one in enumerate(self._replicas) if one.up]
        asked = [(number, generation, getattr(actor, method).remote()) for number, generation, actor in living]
        for number, generation, reference in asked:
            try:
                wait_for([reference], self.cluster.config.call_timeout_seconds)
            except ActorLost as error:
                self._lost(number, generation, f"{method}: {error}")

    @contextmanager
    def _start_turn(self) -> Iterator[None]:
        """The time of a replica's start: not while the trainer has the GPUs that both use."""
        with self._settled:
            self._settled.wait_for(lambda: not self._asleep or self._closed.is_set())
            self._starting += 1
        try:
            yield
        finally:
            with self._settled:
                self._starting -= 1
                self._settled.notify_all()


def _fault(error: BaseException) -> RuntimeFault:
    return error if isinstance(error, RuntimeFault) else RuntimeFault(f"sampling failed: {error}")
