"""The one loop of reinforcement learning. Subclasses change where data and gradients come from."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import tinker
from tinker_cookbook.checkpoint_utils import CheckpointManager, CheckpointRecord
from tinker_cookbook.completers import seed_scope
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.rl import metrics as rl_metrics
from tinker_cookbook.rl.batch_source import (
    AsyncWindowSource,
    BatchSource,
    Minibatch,
    StreamMinibatchSource,
    SyncSource,
    WrappedTrajectoryGroup,
)
from tinker_cookbook.rl.config import Config, RunMode, run_mode
from tinker_cookbook.rl.data_processing import remove_constant_reward_groups
from tinker_cookbook.rl.discarded_work import DiscardedWorkLog, count_discarded_rollout, drop_constant_reward_group
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.rollout_report import IterationReport, run_evaluations_parallel
from tinker_cookbook.rl.rollout_strategy import RolloutStrategy
from tinker_cookbook.rl.rollouts import RolloutErrorCounter, do_group_rollout_and_filter_constant_reward
from tinker_cookbook.rl.sampler_weights import (
    compute_full_batch_metrics_and_get_sampling_client,
    save_checkpoint_and_get_sampling_client,
)
from tinker_cookbook.rl.train_step import (
    GradientAccumulator,
    adam_params,
    rollout_usage,
    train_parts,
    training_data,
    training_usage,
)
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, TrajectoryGroup
from tinker_cookbook.utils import ml_log, trace
from tinker_cookbook.utils.cost_estimation import CostTracker, TokenUsage

logger = logging.getLogger(__name__)


class TrainingLoop:
    """State of a run and its one loop.

    ``mode``: how sampling and training alternate, by default as the configuration says. ``strategy``: what happens with
    failed rollouts, likewise. ``num_batches``: batches that count as the whole run in ``progress/done_frac``.
    """

    def __init__(
        self,
        config: Config,
        training_client: tinker.TrainingClient,
        checkpoints: CheckpointManager,
        kl_reference_client: tinker.SamplingClient | None,
        evaluators: Sequence[SamplingClientEvaluator],
        dataset: RLDataset,
        ml_logger: ml_log.Logger,
        tokenizer: Any,
        *,
        mode: RunMode | None = None,
        error_counter: RolloutErrorCounter | None = None,
        strategy: RolloutStrategy | None = None,
        cost_tracker: CostTracker | None = None,
        num_batches: int | None = None,
    ) -> None:
        self.config = config
        self.training_client = training_client
        self.checkpoints = checkpoints
        self.kl_reference_client = kl_reference_client
        self.evaluators = evaluators
        self.dataset = dataset
        self.ml_logger = ml_logger
        self.tokenizer = tokenizer
        self.mode = mode or run_mode(config)
        self.error_counter = error_counter or RolloutErrorCounter()
        self.strategy = strategy or config.effective_rollout_strategy()
        self.cost = cost_tracker or CostTracker()
        self.num_batches = num_batches
        self._discarded = DiscardedWorkLog(self.cost, ml_logger)
        self._reference_usage = TokenUsage()
        self._report: IterationReport | None = None
        self._gradients = GradientAccumulator(training_client, config)

    def _source(self, start: int, end: int) -> BatchSource:
        config = self.config
        stream, in_order = config.stream_minibatch_config, config.sampling_seed is not None
        if self.mode == "async":
            assert config.async_config is not None
            return AsyncWindowSource(
                self.dataset,
                self._sample_group,
                config.num_substeps,
                config.async_config.groups_per_batch,
                config.async_config.max_steps_off_policy,
                start,
                end,
                in_order,
                stream.num_minibatches if stream is not None else None,
            )
        if self.mode == "stream_minibatch":
            assert stream is not None
            return StreamMinibatchSource(
                self.dataset, self._sample_group, config.num_substeps, stream.num_minibatches, in_order
            )
        return SyncSource(self.dataset, self._sample_group, config.num_substeps)

    @trace.scope
    async def _sample_group(
        self, sampler: tinker.SamplingClient, builder: EnvGroupBuilder, batch: int, index: int
    ) -> TrajectoryGroup | None:
        config = self.config
        report = self._report
        logged = report.rollouts(index) if report is not None else contextlib.nullcontext(False)
        seeds = seed_scope(config.sampling_seed, batch, index) if config.sampling_seed is not None else None
        with logged as enabled, seeds or contextlib.nullcontext():
            group = await do_group_rollout_and_filter_constant_reward(
                sampler,
                builder,
                max_tokens=config.max_tokens,
                temperature=config.temperature,
                do_remove_constant_reward_groups=False,
                enable_logging=enabled,
                strategy=self.strategy,
                termination=config.effective_termination(),
            )
        self.error_counter.ingest(group)
        if self.mode == "sync":  # a whole batch is filtered at once, so that one group is left
            return group
        return drop_constant_reward_group(group, config, self.cost, self._discarded, batch)

    async def run(self, start: int, end: int) -> None:
        """Train on the batches start..end of the dataset, and make the final checkpoint."""
        await self.train(start, end)
        await self.checkpoints.finalize_async({"batch": end})

    async def train(self, start: int, end: int) -> None:
        """Train on the batches start..end of the dataset."""
        if start < end:
            source = self._source(start, end)
            try:
                sampler, _ = await save_checkpoint_and_get_sampling_client(
                    self.training_client,
                    self.checkpoints,
                    start,
                    start,
                    self.config.records_stability_info(),
                    self.cost,
                )
                for step in range(start, end):
                    with trace.trace_iteration(step) as window:
                        sampler, metrics = await self._iteration(step, end, source, sampler)
                    metrics.update(window.get_timing_metrics())
                    self._write_timing(step, window)
                    self.ml_logger.log_metrics(metrics, step=step)
                    self._discarded.step_logged()
            finally:
                await source.close()

    async def _iteration(
        self,
        step: int,
        end: int,
        source: BatchSource,
        sampler: tinker.SamplingClient,
    ) -> tuple[tinker.SamplingClient, dict[str, Any]]:
        config = self.config
        metrics: dict[str, Any] = {
            "progress/batch": step,
            "progress/done_frac": (step + 1) / (self.num_batches or end),
            "optim/lr": config.learning_rate,
        }
        if config.eval_every > 0 and step % config.eval_every == 0:
            metrics.update(await self._evaluate(step, sampler))
        groups: list[WrappedTrajectoryGroup] = []
        data_D: list[tinker.Datum] = []
        logprobs_D: list[Any] = []
        with IterationReport(config.log_path, step, config.num_groups_to_log) as report:
            self._report = report
            source.set_sampler(sampler, step)
            async with trace.scope_span("sampling_and_training"):
                async for minibatch in source.minibatches(step):
                    data, minibatch_logprobs = await self._train_on(minibatch, metrics)
                    groups += minibatch.groups
                    data_D += data
                    logprobs_D += minibatch_logprobs
            report.summarize(groups, self.tokenizer)
        self._report = None
        if config.rollout_json_export and groups:
            report.write_summaries("train", groups)
        if groups:
            metrics.update(
                compute_trajectory_metrics(
                    [group.trajectory_group for group in groups],
                    [group.env_group_builder.logging_tags() for group in groups],
                )
            )
        if self.mode != "sync":
            metrics.update(rl_metrics.compute_sampling_client_metrics(groups))
        if self.mode == "async":
            metrics["training_client/step"] = step
            metrics.update(rl_metrics.staleness_metrics(step, [group.sampling_client_step for group in groups]))
        usage = rollout_usage([group.trajectory_group for group in groups]) + training_usage(data_D)
        sampler, closing = await compute_full_batch_metrics_and_get_sampling_client(
            self.training_client,
            self.checkpoints,
            step + 1,
            data_D,
            logprobs_D,
            config.compute_post_kl,
            config.records_stability_info(),
            usage + self._reference_usage,
            self.cost,
        )
        metrics.update(closing)
        self._reference_usage = TokenUsage()
        await self.after_step(step, sampler)
        if step + 1 == end and (self.evaluators and config.eval_every > 0):
            metrics.update(await self._evaluate(step + 1, sampler))
        metrics.update(self.error_counter.get_metrics())
        self.error_counter.reset()
        return sampler, metrics

    # What subclasses change

    async def setup(self, service_client: tinker.ServiceClient, resume: CheckpointRecord | None) -> None:
        """Get what the loop needs from the service before it starts."""
        return None

    async def prepare(self, groups: Sequence[WrappedTrajectoryGroup]) -> tuple[list[tinker.Datum], dict[str, float]]:
        """Data of groups, and metrics."""
        config = self.config
        data, metrics, usage = await training_data(
            [group.trajectory_group for group in groups],
            self.kl_reference_client,
            config.kl_penalty_coef,
            config.kl_discount_factor,
            estimator=config.advantage_estimator,
            gae_gamma=config.gae_gamma,
            gae_lambda=config.gae_lambda,
        )
        self._reference_usage += usage
        return data, metrics

    async def step(self, data: list[tinker.Datum], substeps: int, metrics: dict[str, Any]) -> list[Any]:
        """Train on data with ``substeps`` optimizer steps. Returns the trainer's logprobs of each datum, or nothing."""
        config = self.config
        return await train_parts(
            data,
            self.training_client,
            adam_params(config),
            substeps,
            config.training_loss_fn(),
            config.loss_fn_config,
            metrics,
        )

    async def after_step(self, step: int, sampler: tinker.SamplingClient) -> None:
        """Called with the new weights after each training step."""
        return None

    async def _train_on(self, minibatch: Minibatch, metrics: dict[str, Any]) -> tuple[list[tinker.Datum], list[Any]]:
        """Train on a minibatch. Returns its data and the trainer's logprobs, both in the order of training."""
        config = self.config
        if config.remove_constant_reward_groups and self.mode == "sync":
            kept = remove_constant_reward_groups([group.trajectory_group for group in minibatch.groups])
            chosen = [any(group.trajectory_group is k for k in kept) for group in minibatch.groups]
            for group, keep in zip(minibatch.groups, chosen, strict=True):
                if not keep:
                    count_discarded_rollout(self.cost, group.trajectory_group)
            minibatch.groups[:] = [group for group, keep in zip(minibatch.groups, chosen, strict=True) if keep]
        data, prepared_metrics = await self.prepare(minibatch.groups)
        metrics.update(prepared_metrics)
        if minibatch.optim_steps and not self._gradients.waiting and data:
            return data, await self.step(data, minibatch.optim_steps, metrics)
        return data, await self._gradients.add(data, minibatch.optim_steps > 0, metrics)

    async def _evaluate(self, step: int, sampler: tinker.SamplingClient) -> dict[str, float]:
        if not self.evaluators:
            return {}
        async with trace.scope_span("run_evals"):
            return await run_evaluations_parallel(self.evaluators, sampler, self.config, step, self.ml_logger.store)

    def _write_timing(self, step: int, window: trace.IterationWindow) -> None:
        store = self.ml_logger.store
        if store is not None:
            store.write_timing_spans(step, window.get_span_dicts())
        every = self.config.span_chart_every
        if every > 0 and step % every == 0:
            folder = IterationReport.folder(self.config.log_path, step)
            folder.mkdir(parents=True, exist_ok=True)
            trace.save_gantt_chart_html(window, step, folder / "timing_gantt.html")
