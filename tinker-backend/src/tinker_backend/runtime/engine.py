"""The embedded engine: one thread owns torch and decides what runs next.

Training calls run in the order of their arrival, forward_backwards of different runs that wait together share a pass.
When both training and sampling have work, they take turns by the time they have used, at the grain of a micro-batch and
a decode step, so neither starves and they never compete for the same cores.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tinker_backend.runtime.arrivals import Burst
from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.calls import Call, take_next, trainer_call
from tinker_backend.runtime.hardware import give_back_freed_memory
from tinker_backend.runtime.roles import LossRequest, LossResult, RuntimeFault, SampleRequest
from tinker_backend.runtime.torch_sampler import TorchSampler
from tinker_backend.runtime.torch_trainer import Steps, TorchTrainer
from tinker_backend.runtime.weight_files import save_run, weights_info

log = logging.getLogger(__name__)

_CREDIT_SECONDS = 10.0
"""How far one side may fall behind before its claim is forgotten (an idle side saves nothing up)."""
_IDLE_SECONDS = 10.0
"""Without work for so long, freed memory goes back to the system."""


class Engine:
    """Trainer and sampler behind one queue. ``submit`` may be called from any thread; all else is its own thread."""

    def __init__(self, models: dict[str, BaseModel], trainer: TorchTrainer, sampler: TorchSampler) -> None:
        self.models = models
        self.trainer = trainer
        self.sampler = sampler
        self._inbox: deque[Call] = deque()
        self._training: deque[Call] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._pass: tuple[list[Call], Steps] | None = None
        self._used = {"training": 0.0, "sampling": 0.0}
        self._burst = Burst()
        self._writer = ThreadPoolExecutor(1, "writer")
        self._spare_work: Iterator[None] | None = sampler.prepare()
        self._worked = False

    def submit(self, call: Call) -> None:
        """Queues a call; its reply is called on the engine thread."""
        with self._wake:
            self._inbox.append(call)
            self._wake.notify()

    def stop(self) -> None:
        """Ends ``run`` after the step that is under way."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def run(self) -> None:
        """Works until ``stop``."""
        while True:
            with self._wake:
                while not (self._inbox or self._stopping or self._busy() or self._spare_work):
                    if not self._wake.wait(_IDLE_SECONDS if self._worked else None):
                        self._worked, self._spare_work = False, give_back_freed_memory()
                if not (self._inbox or self._stopping) and (patience := self._patience()) > 0:
                    self._wake.wait(patience)
                if self._stopping:
                    return
                arrived, self._inbox = list(self._inbox), deque()
            for call in arrived:
                self._accept(call)
            if self._spare_work and not self._busy():
                self._use_spare_time()
            if self._patience() <= 0:
                self._work()

    def _patience(self) -> float:
        """Seconds to wait for more requests before the next step, when all work is the start of a burst of samples."""
        if self._training or self._pass or self.sampler.idle:
            return 0.0
        return self._burst.patience(time.monotonic(), self.sampler.batcher.running)

    def _use_spare_time(self) -> None:
        """One piece of what makes later work faster or gives memory back; nothing depends on it."""
        assert self._spare_work is not None
        try:
            next(self._spare_work)
        except StopIteration:
            self._spare_work = None
        except Exception:
            log.exception("work in spare time failed; the engine works on without")
            self._spare_work = None

    def queues(self) -> dict[str, int]:
        """Lengths of the queues, for status."""
        return {
            "training": len(self._training) + (1 if self._pass else 0),
            "sampling": len(self.sampler.batcher.waiting),
            "running": self.sampler.batcher.running,
        }

    def _busy(self) -> bool:
        return bool(self._training or self._pass) or not self.sampler.idle

    # --- accepting

    def _accept(self, call: Call) -> None:
        if call.method == "sample":
            self._burst.note(call.arrived)
            self._begin_sample(call)
        elif call.method in ("cancel", "load_sampler", "drop_sampler", "read_weights_info", "status"):
            self._answer(call, lambda: self._immediate(call.method, call.params))
        else:
            self._training.append(call)

    def _begin_sample(self, call: Call) -> None:
        request: SampleRequest = call.params["request"]

        def settled(future: Future[Any]) -> None:
            error = future.exception()
            call.reply(future.result() if error is None else error)

        try:
            listener = call.part if call.params.get("stream") else None
            self.sampler.sample(request, listener).add_done_callback(settled)
        except RuntimeFault as fault:
            call.reply(fault)
        except Exception as error:
            log.exception("a sample request could not be accepted")
            call.reply(RuntimeFault(f"sample: {type(error).__name__}: {error}"))

    def _answer(self, call: Call, compute: Callable[[], Any]) -> None:
        try:
            result = compute()
        except RuntimeFault as fault:
            result = fault
        except Exception as error:
            log.exception("%s failed", call.method)
            result = RuntimeFault(f"{call.method} failed: {type(error).__name__}: {error}")
        call.reply(result)

    def _immediate(self, method: str, params: dict[str, Any]) -> Any:
        if method == "cancel":
            return self.sampler.cancel(params["request_id"])
        if method == "load_sampler":
            return self.sampler.load(params["version"], params["base_model"], params["path"])
        if method == "drop_sampler":
            return self.sampler.drop(params["version"])
        if method == "read_weights_info":
            return weights_info(params["path"])
        return self.status()

    def status(self) -> dict[str, Any]:
        """Runs, versions, memory and queues."""
        with open("/proc/self/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * 4096
        return {
            "runs": sorted(self.trainer.runs),
            "samplers": sorted(self.sampler.versions),
            "memory_bytes": resident,
            "queues": self.queues(),
            "kv_cache": {
                "limit_tokens": self.sampler.batcher.budget.limit,
                "used_tokens": self.sampler.batcher.budget.used,
            },
        }

    # --- working

    def _work(self) -> None:
        training, sampling = bool(self._training or self._pass), not self.sampler.idle
        if training and sampling:
            side = min(self._used, key=lambda name: self._used[name])
        elif training or sampling:
            side = "training" if training else "sampling"
        else:
            return
        self._worked = True
        start = time.monotonic()
        if side == "training":
            self._train()
        else:
            self.sampler.step()
        self._used[side] += time.monotonic() - start
        most = max(self._used.values())
        for name in self._used:
            self._used[name] = max(self._used[name], most - _CREDIT_SECONDS)
        if not (training and sampling):
            self._used = dict.fromkeys(self._used, 0.0)

    def _train(self) -> None:
        """One micro-batch of the pass under way, or the next training call."""
        if self._pass is None:
            calls = take_next(self._training)
            call = calls[0]
            if call.method != "forward_backward":
                if call.method == "save" and call.params.get("kind") == "sampler":
                    self._save_aside(call)
                else:
                    self._answer(call, lambda: self._training_call(call.method, call.params))
                return
            batch: list[LossRequest] = [request for call in calls for request in call.params["batch"]]
            self._pass = (calls, self.trainer.forward_backward_steps(batch))
        calls, steps = self._pass
        try:
            next(steps)
        except StopIteration as done:
            self._pass = None
            self._hand_out(calls, done.value)
        except Exception as error:
            self._pass = None
            log.exception("forward_backward failed")
            for call in calls:
                call.reply(RuntimeFault(f"forward_backward failed: {type(error).__name__}: {error}"))

    def _save_aside(self, call: Call) -> None:
        """Writes weights for a sampler on a thread of its own: the disk must not hold up samples and other runs."""
        try:
            frozen = self.trainer.run(call.params["run_id"]).frozen()
        except (RuntimeFault, KeyError) as error:
            call.reply(error if isinstance(error, RuntimeFault) else RuntimeFault(f"save: {error} is missing"))
            return
        path = call.params["path"]
        self._writer.submit(self._answer, call, lambda: save_run(frozen, path, "sampler"))

    def _hand_out(self, calls: list[Call], results: list[LossResult | RuntimeFault]) -> None:
        at = 0
        for call in calls:
            count = len(call.params["batch"])
            call.reply(results[at : at + count])
            at += count

    def _training_call(self, method: str, params: dict[str, Any]) -> Any:
        if method == "publish":
            return self.sampler.publish(self.trainer.run(params["run_id"]), params["version"])
        return trainer_call(self.trainer, method, params)
