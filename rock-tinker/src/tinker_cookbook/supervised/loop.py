"""The loop over epochs and batches that supervised training, DPO and off-policy distillation share.

Batch k+1 is submitted before the result of batch k is read. A checkpoint is made before the batch that it names is
submitted and after all batches before it are read, so a resumed run trains and logs every batch exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tinker
from tinker_cookbook.checkpoint_utils import CheckpointManager, CheckpointRecord
from tinker_cookbook.eval.evaluators import Evaluator, SamplingClientEvaluator, TrainingClientEvaluator
from tinker_cookbook.supervised.common import compute_bpb, compute_mean_nll
from tinker_cookbook.supervised.types import SupervisedDataset
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.utils import ml_log, trace
from tinker_cookbook.utils.lr_scheduling import LRSchedule, compute_schedule_lr_multiplier

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoopSettings:
    """What the loop needs to know of a configuration."""

    log_path: str
    learning_rate: float
    lr_schedule: LRSchedule = "linear"
    num_epochs: int = 1
    max_steps: int | None = None
    eval_every: int = 10
    infrequent_eval_every: int = 100
    save_every_tokens: int = 0
    save_every_seconds: float = 0.0
    async_periodic_saves: bool = False
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    span_chart_every: int = 0
    submit_ahead: int = 1
    seed: int | None = None

    @classmethod
    def from_config(cls, config: Any) -> LoopSettings:
        """Take the fields that a configuration has."""
        names = [name for name in cls.__dataclass_fields__ if hasattr(config, name)]
        return cls(**{name: getattr(config, name) for name in names})


def epoch_seed(seed: int | None, epoch: int) -> int:
    """Seed of an epoch's order; without a seed of the run it is the epoch's number."""
    return epoch if seed is None else int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])


@dataclass
class SubmittedBatch:
    """A batch whose calls are under way."""

    fwd_bwd_future: Any
    optim_step_future: Any
    metrics: dict[str, Any]
    data: list[tinker.Datum]
    step: int
    epoch_idx: int
    batch_idx: int
    eval_metrics: dict[str, float] | None = None
    infrequent_eval_metrics: dict[str, float] | None = None
    num_tokens: int = 0  # of the input
    started: float = field(default_factory=time.perf_counter)


async def run_evals(
    evaluators: Sequence[Evaluator], training_client: tinker.TrainingClient, step: int
) -> dict[str, float]:
    """Metrics of all evaluators; sampling evaluators share one published sampler."""
    metrics: dict[str, float] = {}
    sampler: tinker.SamplingClient | None = None
    for evaluator in evaluators:
        if isinstance(evaluator, TrainingClientEvaluator):
            metrics.update(await evaluator(training_client))
        elif isinstance(evaluator, SamplingClientEvaluator):
            if sampler is None:
                sampler = await training_client.save_weights_and_get_sampling_client()
            metrics.update(await evaluator(sampler))
        else:
            raise TypeError(f"evaluator {evaluator!r} takes neither a training nor a sampling client")
    return metrics


class SupervisedLoop:
    """Cross entropy by default; subclasses change how a batch is prepared, submitted and read."""

    def __init__(
        self,
        settings: LoopSettings,
        training_client: tinker.TrainingClient,
        checkpoints: CheckpointManager,
        dataset: SupervisedDataset,
        evaluators: Sequence[Evaluator],
        infrequent_evaluators: Sequence[Evaluator],
        ml_logger: ml_log.Logger,
        tokenizer: Tokenizer,
    ) -> None:
        self.settings = settings
        self.training_client = training_client
        self.checkpoints = checkpoints
        self.dataset = dataset
        self.evaluators = evaluators
        self.infrequent_evaluators = infrequent_evaluators
        self.ml_logger = ml_logger
        self.tokenizer = tokenizer
        self._tokens = 0
        self._saves: list[asyncio.Task[Any]] = []

    # What subclasses change

    async def setup(self, service_client: tinker.ServiceClient, config: Any, resume: CheckpointRecord | None) -> None:
        """Get what the loop needs from the service before it starts."""
        return None

    async def prepare(self, data: list[tinker.Datum]) -> list[tinker.Datum]:
        """The data to train on."""
        return data

    def submit(self, data: list[tinker.Datum], learning_rate: float) -> tuple[Any, Any]:
        """Futures of the forward-backward call and of the optimizer step."""
        forward_backward = self.training_client.forward_backward(data, "cross_entropy")
        return forward_backward, self.training_client.optim_step(self.adam(learning_rate))

    def read(self, batch: SubmittedBatch, result: Any) -> dict[str, float]:
        """Metrics of a finished batch."""
        weights = [datum.loss_fn_inputs["weights"] for datum in batch.data]
        logprobs = [np.asarray(output["logprobs"].to_numpy()) for output in result.loss_fn_outputs]
        targets = [datum.loss_fn_inputs["target_tokens"] for datum in batch.data]
        return {
            "num_loss_tokens": float(sum(np.count_nonzero(np.asarray(w.to_numpy())) for w in weights)),
            "train_mean_nll": compute_mean_nll(logprobs, weights),
            "train_mean_bpb": compute_bpb(logprobs, weights, targets, self.tokenizer),
        }

    def adam(self, learning_rate: float) -> tinker.AdamParams:
        """Optimizer parameters."""
        s = self.settings
        return tinker.AdamParams(learning_rate=learning_rate, beta1=s.adam_beta1, beta2=s.adam_beta2, eps=s.adam_eps)

    # The loop

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return len(self.dataset)

    async def run(self, resume: CheckpointRecord | None = None) -> None:
        """Train from the beginning, or from where a checkpoint was made."""
        per_epoch = self.steps_per_epoch
        scheduled = per_epoch * self.settings.num_epochs
        total = scheduled if self.settings.max_steps is None else min(scheduled, self.settings.max_steps)
        first = ((resume.epoch or 0) * per_epoch + (resume.batch or 0)) if resume is not None else 0
        if resume is not None:
            self._tokens = int(resume.get("cumulative_tokens", 0))
            self.checkpoints.restore_last_saved_tokens(self._tokens)
            if resume.final and first >= total:
                logger.info("this run is finished; give more epochs or a larger max_steps to go on")
                return
            dropped = self.ml_logger.store.truncate_metrics(first) if self.ml_logger.store else 0
            logger.info("resuming at step %d of %d (%d later metric rows dropped)", first, total, dropped)
        waiting: deque[SubmittedBatch] = deque()
        epoch = -1
        for step in range(first, total):
            if step // per_epoch != epoch:
                epoch = step // per_epoch
                self.dataset.set_epoch(seed=epoch_seed(self.settings.seed, epoch))
            await self._step(step, epoch, step % per_epoch, total, waiting, self.settings.submit_ahead, step > first)
        while waiting:
            await self._finish(waiting.popleft())
        await asyncio.gather(*self._saves)
        metrics = await run_evals([*self.evaluators, *self.infrequent_evaluators], self.training_client, total)
        if metrics and first < total:
            self.ml_logger.log_metrics(metrics, step=total)
        state = self._state(total // per_epoch, total % per_epoch)
        await self.checkpoints.finalize_async(state)

    async def update(self, epoch: int, index: int, per_epoch: int, total: int) -> None:
        """One step of its own: evaluations and a checkpoint where they are due, training, and metrics."""
        await self._step(epoch * per_epoch + index, epoch, index, total, deque(), 0, True)

    async def _step(
        self,
        step: int,
        epoch: int,
        index: int,
        total: int,
        waiting: deque[SubmittedBatch],
        ahead: int,
        may_save: bool,
    ) -> None:
        """Submit a batch, and finish those that are more than ``ahead`` behind it."""
        with trace.trace_iteration(step) as window:
            if may_save:
                await self._maybe_save(step, epoch, index, waiting)
            waiting.append(await self._submit(step, epoch, index, total, window))
            if len(waiting) > ahead:
                await self._finish(waiting.popleft())
        self._write_timing(step, window)

    async def _submit(
        self, step: int, epoch: int, index: int, total: int, window: trace.IterationWindow
    ) -> SubmittedBatch:
        settings = self.settings
        metrics: dict[str, Any] = {"epoch": epoch, "progress": (step + 1) / total}
        evals: dict[str, float] | None = None
        infrequent: dict[str, float] | None = None
        if settings.eval_every > 0 and step % settings.eval_every == 0:
            async with trace.scope_span("evals"):
                evals = await run_evals(self.evaluators, self.training_client, step)
        if settings.infrequent_eval_every > 0 and step % settings.infrequent_eval_every == 0:
            async with trace.scope_span("infrequent_evals"):
                infrequent = await run_evals(self.infrequent_evaluators, self.training_client, step)
        async with trace.scope_span("get_batch"):
            data = await self.prepare(self.dataset.get_batch(index))
        rate = settings.learning_rate * compute_schedule_lr_multiplier(settings.lr_schedule, step, total)
        metrics.update({"learning_rate": rate, "num_sequences": len(data)})
        started = time.perf_counter()
        async with trace.scope_span("submit_batch"):
            forward_backward, optim = self.submit(data, rate)
        metrics.update({k: v for k, v in window.get_timing_metrics().items() if k != "time/total"})
        tokens = sum(datum.model_input.length for datum in data)
        return SubmittedBatch(
            forward_backward, optim, metrics, data, step, epoch, index, evals, infrequent, tokens, started
        )

    async def _finish(self, batch: SubmittedBatch) -> None:
        waited = time.perf_counter()
        result = await batch.fwd_bwd_future
        optim = await batch.optim_step_future
        metrics = {**batch.metrics, **(batch.eval_metrics or {}), **(batch.infrequent_eval_metrics or {})}
        metrics["num_tokens"] = batch.num_tokens
        metrics.update(self.read(batch, result))
        metrics.update({f"optim/{key}": value for key, value in (getattr(optim, "metrics", None) or {}).items()})
        now = time.perf_counter()
        metrics.update({"time/finish_batch": now - waited, "time/step": now - batch.started})
        self._tokens += batch.num_tokens
        metrics["tokens/cumulative/trained"] = self._tokens
        self.ml_logger.log_metrics(metrics, step=batch.step)

    def _write_timing(self, step: int, window: trace.IterationWindow) -> None:
        if self.ml_logger.store is not None:
            self.ml_logger.store.write_timing_spans(step, window.get_span_dicts())
        every = self.settings.span_chart_every
        if every > 0 and step % every == 0:
            trace.save_gantt_chart_html(window, step, Path(self.settings.log_path) / f"timing_gantt_{step:06d}.html")

    def _state(self, epoch: int, index: int) -> dict[str, Any]:
        return {"epoch": epoch, "batch": index, "cumulative_tokens": self._tokens}

    async def _maybe_save(self, step: int, epoch: int, index: int, waiting: deque[SubmittedBatch]) -> None:
        settings, checkpoints = self.settings, self.checkpoints
        periodic = checkpoints.should_save_periodic(step, elapsed_tokens=self._tokens)
        if not periodic and not checkpoints.should_save_rolling(step):
            return
        while waiting:  # a checkpoint must not be listed before the metrics of the steps in it
            await self._finish(waiting.popleft())
        state = self._state(epoch, index)
        if not periodic:
            await checkpoints.maybe_save_rolling_async(step, state)
            return
        checkpoints.periodic_save_begins(self._tokens)
        save = asyncio.create_task(checkpoints.save_periodic_async(step, state))
        if settings.async_periodic_saves:
            await asyncio.sleep(0)  # the requests are made now, before the batch that follows
            self._saves.append(save)
        else:
            await save
