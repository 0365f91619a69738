"""The engine of the cluster: training calls in order on one thread, samples on another or on vLLM, turns where they share GPUs.

It takes the same calls as the embedded engine. When the trainer's ranks are lost, this process ends: the server starts
it again, brings every run back from its last snapshot and repeats what came after.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tinker_backend.runtime.calls import Call, Reply, take_next, trainer_call
from tinker_backend.runtime.ray.ray_cluster import ActorLost
from tinker_backend.runtime.ray.samplers import ClusterSampler
from tinker_backend.runtime.ray.turns import Turns
from tinker_backend.runtime.ray.weight_sync import ExchangeFolder
from tinker_backend.runtime.roles import LossRequest, LossResult, RuntimeFault, SampleRequest, SampleResult
from tinker_backend.runtime.weight_files import read_manifest, weights_info

log = logging.getLogger(__name__)

EXIT_OF_LOST_RANKS = 75
_SAMPLER_CALLS = ("load_sampler", "drop_sampler", "cancel", "read_weights_info", "status")


class ClusterEngine:
    """``submit`` may be called from any thread. ``trainer`` None: rollouts alone."""

    def __init__(
        self,
        trainer: Any,
        sampler: ClusterSampler,
        exchange: ExchangeFolder,
        turns: Turns,
        close: Callable[[], None],
        die: Callable[[int], Any] = os._exit,
    ) -> None:
        self.trainer, self.sampler, self.exchange, self.turns = trainer, sampler, exchange, turns
        self._close, self._die = close, die
        self._training: deque[Call] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._closed = threading.Event()
        self._at_work = False

    def submit(self, call: Call) -> None:
        """Queues a call; its reply may come from any thread."""
        if call.method == "sample":
            self._sample(call)
        elif call.method in _SAMPLER_CALLS:
            # Loading may wait for a file system or a replica, and must not keep the socket waiting.
            threading.Thread(target=self._answer, args=(call, self._sampler_call), daemon=True).start()
        else:
            with self._wake:
                self._training.append(call)
                self._wake.notify_all()

    def stop(self) -> None:
        """Ends ``run``, the actors and Ray."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        try:
            self.exchange.close()
            self._close()
        finally:
            self._closed.set()

    def run(self) -> None:
        """Works on training calls until ``stop``, and returns when everything is closed.

        Ray's head ends with the thread that started it, which is this one, and without a head nothing can be closed.
        """
        while True:
            with self._wake:
                self._at_work = False
                self._wake.wait_for(lambda: self._training or self._stopping)
                if self._stopping:
                    break
                self._at_work = True
                calls = take_next(self._training)
            self._work(calls)
        self._closed.wait()

    def _work(self, calls: list[Call]) -> None:
        try:
            if calls[0].method == "publish":
                self._answer(calls[0], lambda call: self._publish(**call.params))
                return
            with self.turns.training():
                if calls[0].method == "forward_backward":
                    self._forward_backward(calls)
                else:
                    self._answer(calls[0], lambda call: self._training_call(call.method, call.params))
        except ActorLost as error:
            log.critical("the trainer is lost (%s); this process ends, to be started again", error)
            self._die(EXIT_OF_LOST_RANKS)
            for call in calls:
                call.reply(RuntimeFault(f"the trainer is lost: {error}"))

    def _forward_backward(self, calls: list[Call]) -> None:
        batch: list[LossRequest] = [request for call in calls for request in call.params["batch"]]
        try:
            results: list[LossResult | RuntimeFault] = self._trainer().forward_backward(batch)
        except RuntimeFault as fault:
            for call in calls:
                call.reply(fault)
            return
        at = 0
        for call in calls:
            count = len(call.params["batch"])
            call.reply(results[at : at + count])
            at += count

    def _answer(self, call: Call, compute: Callable[[Call], Any]) -> None:
        try:
            result = compute(call)
        except ActorLost:
            if call.method in _SAMPLER_CALLS:
                call.reply(RuntimeFault(f"{call.method}: the sampler is lost"))
                return
            raise
        except RuntimeFault as fault:
            result = fault
        except Exception as error:
            log.exception("%s failed", call.method)
            result = RuntimeFault(f"{call.method} failed: {type(error).__name__}: {error}")
        call.reply(result)

    def _trainer(self) -> Any:
        if self.trainer is None:
            raise RuntimeFault(
                "this engine serves rollouts alone; add actor_train to engine.yaml to train with it", "user"
            )
        return self.trainer

    def _training_call(self, method: str, params: dict[str, Any]) -> Any:
        trainer = self._trainer()
        if method == "score":
            return trainer.score(params["request"], params["path"])
        return trainer_call(trainer, method, params)

    def _publish(self, run_id: str, version: str) -> None:
        trainer = self._trainer()
        receiver = self.sampler.receiver()
        if receiver is not None and trainer.is_full(run_id):
            path = self.exchange.reserve(version)
            receiver.receive(
                version,
                str(path),
                trainer.channel_host(),
                trainer.device,
                lambda channel: trainer.send_weights(run_id, channel),
            )
            self.exchange.fill(path, lambda where, kind: trainer.save(run_id, where, kind), "sampler")
            return

        def save(path: str, kind: Any) -> Any:
            with self.turns.training():
                return trainer.save(run_id, path, kind)

        path = self.exchange.publish(version, save, "sampler")
        try:
            with self.turns.sampling():
                self.sampler.load(version, str(path), read_manifest(str(path))["lora"]["rank"] == 0)
        except BaseException:
            self.exchange.drop(version)
            raise

    # --- sampling

    def _sampler_call(self, call: Call) -> Any:
        params = call.params
        if call.method == "cancel":
            return self.sampler.cancel(params["request_id"])
        if call.method == "load_sampler":
            path = params["path"]
            self.sampler.check_base(params["base_model"])
            full = path is not None and read_manifest(path)["lora"]["rank"] == 0
            with self.turns.sampling():
                return self.sampler.load(params["version"], path, full)
        if call.method == "drop_sampler":
            self.sampler.drop(params["version"])
            return self.exchange.drop(params["version"])
        if call.method == "read_weights_info":
            return weights_info(params["path"])
        return self.status()

    def _sample(self, call: Call) -> None:
        request: SampleRequest = call.params["request"]
        try:
            by_trainer, path = self.sampler.scoring_weights(request)
        except RuntimeFault as fault:
            call.reply(fault)
            return
        if not by_trainer:
            self._sample_now(call, request, call.reply)
            return
        # The trainer scores the prompt before the sample takes a turn, as each turn keeps the other out.
        plain = replace(
            request,
            prompt_logprobs=False,
            prompt_logprobs_last_n=None,
            topk_prompt_logprobs=0,
            target_prompt_logprobs=None,
            prompt_alt_tokens_k=0,
        )

        def scored(scores: SampleResult | RuntimeFault) -> None:
            if isinstance(scores, RuntimeFault):
                call.reply(scores)
                return

            def sampled(result: SampleResult | RuntimeFault) -> None:
                if isinstance(result, SampleResult):
                    hits = result.prompt_cache_hit_tokens
                    result = replace(scores, sequences=result.sequences, prompt_cache_hit_tokens=hits)
                call.reply(result)

            self._sample_now(call, plain, sampled)

        self.submit(Call("score", {"request": request, "path": path}, scored))

    def _sample_now(self, call: Call, request: SampleRequest, reply: Reply) -> None:
        turn, first = self.turns.sampling(), threading.Lock()

        def settle(outcome: SampleResult | RuntimeFault) -> None:
            if first.acquire(blocking=False):
                turn.leave()
                reply(outcome)

        def begin(fault: RuntimeFault | None) -> None:
            if fault is not None:
                settle(fault)
                return
            try:
                self.sampler.sample(request, settle, call.part if call.params.get("stream") else None)
            except RuntimeFault as refused:
                settle(refused)
            except Exception as error:
                log.exception("a sample request could not be accepted")
                settle(RuntimeFault(f"sample: {type(error).__name__}: {error}"))

        turn.when_ready(begin)

    def status(self) -> dict[str, Any]:
        """Runs, versions, memory of this process and queues."""
        with open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * 4096
        return {
            "runs": sorted(self.trainer.runs) if self.trainer is not None else [],
            "samplers": self.sampler.names(),
            "memory_bytes": resident,
            "queues": {
                "training": len(self._training) + int(self._at_work),
                "sampling": 0,
                "running": self.sampler.running(),
            },
        }
