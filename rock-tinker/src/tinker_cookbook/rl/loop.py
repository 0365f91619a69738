"""The one loop of reinforcement learning. Subclasses change where data and gradients come from."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any, cast

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
from tinker_cookbook.rl.config import Config, run_mode
from tinker_cookbook.rl.data_processing import remove_constant_reward_groups, without_mask
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.rollout_report import IterationReport, run_evaluations
from tinker_cookbook.rl.rollouts import RolloutErrorCounter, do_group_rollout_and_filter_constant_reward
from tinker_cookbook.rl.train_step import (
    SubmittedCalls,
    adam_params,
    loss_config,
    prepare_minibatch,
    read_results,
    rollout_usage,
    train_step,
    training_usage,
)
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, TrajectoryGroup
from tinker_cookbook.utils import ml_log, trace
from tinker_cookbook.utils.cost_estimation import CostTracker

logger = logging.getLogger(__name__)


class TrainingLoop:
    """State of a run and its one loop."""

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
    ) -> None:
        self.config = config
        self.training_client = training_client
        self.checkpoints = checkpoints
        self.kl_reference_client = kl_reference_client
        self.evaluators = evaluators
        self.dataset = dataset
        self.ml_logger = ml_logger
        self.tokenizer = tokenizer
        self.error_counter = RolloutErrorCounter()
        self.cost = CostTracker()
        self._report: IterationReport | None = None

    def _source(self, start: int, end: int) -> BatchSource:
        config = self.config
        if config.async_config is not None:
            return AsyncWindowSource(
                self.dataset,
                self._sample_group,
                config.num_substeps,
                config.async_config.groups_per_batch,
                config.async_config.max_steps_off_policy,
                start,
                end,
            )
        if config.stream_minibatch_config is not None:
            minibatches = config.stream_minibatch_config.num_minibatches
            return StreamMinibatchSource(self.dataset, self._sample_group, config.num_substeps, minibatches)
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
                do_remove_constant_reward_groups=config.remove_constant_reward_groups and run_mode(config) != "sync",
                enable_logging=enabled,
                strategy=config.effective_rollout_strategy(),
                termination=config.effective_termination(),
            )
        self.error_counter.ingest(group)
        return group

    async def run(self, start: int, end: int) -> None:
        """Train on the batches start..end of the dataset."""
        if start < end:
            source = self._source(start, end)
            try:
                sampler = await self._publish(start, first=True)
                for step in range(start, end):
                    with trace.trace_iteration(step) as window:
                        sampler = await self._iteration(step, end, source, sampler, window)
            finally:
                await source.close()
        await self.checkpoints.finalize_async({"batch": end})

    async def _iteration(
        self,
        step: int,
        end: int,
        source: BatchSource,
        sampler: tinker.SamplingClient,
        window: trace.IterationWindow,
    ) -> tinker.SamplingClient:
        config = self.config
        metrics: dict[str, Any] = {
            "progress/batch": step,
            "progress/done_frac": (step + 1) / end,
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
                accumulated: list[SubmittedCalls] = []
                async for minibatch in source.minibatches(step):
                    data, minibatch_logprobs = await self._train_on(minibatch, accumulated, metrics)
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
        if data_D and len(logprobs_D) == len(data_D):
            metrics.update(rl_metrics.compute_kl_sample_train(data_D, logprobs_D))
        if config.async_config is not None:
            metrics["training_client/step"] = step
            metrics.update(rl_metrics.staleness_metrics(step, [group.sampling_client_step for group in groups]))
        sampler = await self._publish(step + 1)
        await self.after_step(step, sampler)
        if config.compute_post_kl and data_D:
            post_kl, _ = await rl_metrics.compute_post_kl(data_D, sampler)
            metrics.update(post_kl)
        if step + 1 == end and (self.evaluators and config.eval_every > 0):
            metrics.update(await self._evaluate(step + 1, sampler))
        usage = rollout_usage([group.trajectory_group for group in groups]) + training_usage(data_D)
        metrics.update(self.cost.record_step(usage))
        metrics.update(self.error_counter.get_metrics())
        self.error_counter.reset()
        metrics.update(window.get_timing_metrics())
        self._write_timing(step, window)
        self.ml_logger.log_metrics(metrics, step=step)
        return sampler

    # What subclasses change

    async def setup(self, service_client: tinker.ServiceClient, resume: CheckpointRecord | None) -> None:
        """Get what the loop needs from the service before it starts."""
        return None

    async def prepare(self, groups: Sequence[WrappedTrajectoryGroup]) -> tuple[list[tinker.Datum], dict[str, float]]:
        """Data of groups, and metrics."""
        trajectory_groups = [group.trajectory_group for group in groups]
        return await prepare_minibatch(trajectory_groups, self.config, self.kl_reference_client)

    async def step(self, data: list[tinker.Datum], substeps: int, metrics: dict[str, Any]) -> list[Any]:
        """Train on data with ``substeps`` optimizer steps. Returns the trainer's logprobs of each datum, or nothing."""
        config = self.config
        return await train_step(
            data,
            self.training_client,
            config.learning_rate,
            substeps,
            config.training_loss_fn(),
            config.loss_fn_config,
            metrics,
            adam_params(config),
        )

    async def after_step(self, step: int, sampler: tinker.SamplingClient) -> None:
        """Called with the new weights after each training step."""
        return None

    async def _train_on(
        self, minibatch: Minibatch, accumulated: list[SubmittedCalls], metrics: dict[str, Any]
    ) -> tuple[list[tinker.Datum], list[Any]]:
        """Train on a minibatch. Returns its data and the trainer's logprobs, both in the order of training."""
        config = self.config
        if config.remove_constant_reward_groups and run_mode(config) == "sync":
            kept = remove_constant_reward_groups([group.trajectory_group for group in minibatch.groups])
            minibatch.groups[:] = [g for g in minibatch.groups if any(g.trajectory_group is k for k in kept)]
        data, prepared_metrics = await self.prepare(minibatch.groups)
        metrics.update(prepared_metrics)
        if minibatch.optim_steps and not accumulated and data:
            return data, await self.step(data, minibatch.optim_steps, metrics)
        # Gradients add up over the minibatches of a substep.
        submitted = SubmittedCalls()
        if data:
            sent = [without_mask(datum) for datum in data]
            submitted.forward_backward.append(
                self.training_client.forward_backward(
                    sent, cast(tinker.types.LossFnType, config.training_loss_fn()), loss_config(config.loss_fn_config)
                )
            )
        if minibatch.optim_steps and (data or accumulated):
            submitted.optim.append(self.training_client.optim_step(adam_params(config)))
            accumulated.clear()
        elif data:
            accumulated.append(submitted)
        async with trace.scope_span("train_step"):
            return data, await read_results(submitted, metrics)

    @trace.scope
    async def _publish(self, step: int, first: bool = False) -> tinker.SamplingClient:
        """Weights of this step for sampling; at a checkpoint step the saved ones."""
        record = self.config.records_stability_info()
        if not first:
            paths = await self.checkpoints.maybe_save_async(step, {"batch": step})
            if paths is not None and "sampler_path" in paths:
                return await self.training_client.create_sampling_client(
                    paths["sampler_path"], record_stability_info=record
                )
        return await self.training_client.save_weights_and_get_sampling_client(record_stability_info=record)

    async def _evaluate(self, step: int, sampler: tinker.SamplingClient) -> dict[str, float]:
        if not self.evaluators:
            return {}
        async with trace.scope_span("run_evals"):
            return await run_evaluations(self.evaluators, sampler, self.config, step)

    def _write_timing(self, step: int, window: trace.IterationWindow) -> None:
        store = self.ml_logger.store
        if store is not None:
            store.write_timing_spans(step, window.get_span_dicts())
        every = self.config.span_chart_every
        if every > 0 and step % every == 0:
            folder = IterationReport.folder(self.config.log_path, step)
            folder.mkdir(parents=True, exist_ok=True)
            trace.save_gantt_chart_html(window, step, folder / "timing_gantt.html")
