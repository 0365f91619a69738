"""Reinforcement learning: sample groups, turn them into data, step the optimizer, publish new weights.

One loop serves all modes; where its batches come from is the business of ``batch_source``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import tinker
from tinker_cookbook import checkpoint_utils, model_info
from tinker_cookbook.checkpoint_utils import CheckpointManager, CheckpointRecord
from tinker_cookbook.completers import seed_scope
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.rl import metrics as rl_metrics
from tinker_cookbook.rl.advantages import estimate_advantages
from tinker_cookbook.rl.batch_source import (
    AsyncWindowSource,
    BatchSource,
    Minibatch,
    StreamMinibatchSource,
    SyncSource,
    WrappedTrajectoryGroup,
    gather_with_progress,
)
from tinker_cookbook.rl.config import (
    AsyncConfig,
    Config,
    KLReferenceConfig,
    StreamMinibatchConfig,
    run_mode,
)
from tinker_cookbook.rl.data_processing import assemble_training_data, remove_constant_reward_groups, without_mask
from tinker_cookbook.rl.dataset_utils import EpochCycledRLDataset
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator, compute_trajectory_metrics
from tinker_cookbook.rl.rollout_report import IterationReport, run_evaluations
from tinker_cookbook.rl.rollouts import (
    RolloutErrorCounter,
    do_group_rollout_and_filter_constant_reward,
    set_rollout_executor,
)
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, TrajectoryGroup
from tinker_cookbook.utils import ml_log, trace
from tinker_cookbook.utils.cost_estimation import CostTracker, TokenUsage
from tinker_cookbook.utils.git_rev import recipe_user_metadata
from tinker_cookbook.utils.misc_utils import split_list
from tinker_cookbook.utils.session_naming import resolve_session_display_name

logger = logging.getLogger(__name__)

__all__ = [
    "AsyncConfig",
    "Config",
    "KLReferenceConfig",
    "StreamMinibatchConfig",
    "WrappedTrajectoryGroup",
    "gather_with_progress",
    "main",
    "prepare_minibatch",
    "train_step",
]


def adam_params(config: Config) -> tinker.AdamParams:
    """Optimizer parameters of a step; the learning rate is constant."""
    return tinker.AdamParams(
        learning_rate=config.learning_rate,
        beta1=config.adam_beta1,
        beta2=config.adam_beta2,
        eps=config.adam_eps,
        grad_clip_norm=config.grad_clip_norm,
    )


@dataclass
class _Submitted:
    """Calls that are under way."""

    forward_backward: list[Any] = field(default_factory=list)
    optim: list[Any] = field(default_factory=list)


def _loss_config(loss_fn_config: dict[str, Any] | None) -> dict[str, Any] | None:
    return dict(loss_fn_config) if loss_fn_config else None


async def _read(submitted: _Submitted, metrics: dict[str, Any] | None) -> list[Any]:
    """Wait for the calls. Returns the trainer's logprobs of each datum; server metrics go to ``optim/``."""
    logprobs_D: list[Any] = []
    for future in submitted.forward_backward:
        result = await future
        logprobs_D.extend(output["logprobs"].to_numpy() for output in result.loss_fn_outputs)
    for future in submitted.optim:
        result = await future
        if metrics is not None and getattr(result, "metrics", None):
            metrics.update({f"optim/{key}": value for key, value in result.metrics.items()})
    return logprobs_D


@trace.scope
async def train_step(
    data_D: list[tinker.Datum],
    training_client: tinker.TrainingClient,
    learning_rate: float,
    num_substeps: int = 1,
    loss_fn: str = "importance_sampling",
    loss_fn_config: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    optim_params: tinker.AdamParams | None = None,
) -> list[Any]:
    """Split the data in ``num_substeps`` consecutive parts, with an optimizer step after each.

    Each part's calls are submitted before the results of the part before it are read. Returns the logprobs that the
    trainer gave each datum. The optimizer is Adam with betas (0.9, 0.95) and eps 1e-8 unless ``optim_params`` is given.
    """
    params = optim_params or tinker.AdamParams(learning_rate=learning_rate, beta1=0.9, beta2=0.95, eps=1e-8)
    logprobs_D: list[Any] = []
    previous: _Submitted | None = None
    for part in split_list(data_D, min(num_substeps, len(data_D))):
        sent = [without_mask(datum) for datum in part]
        submitted = _Submitted(
            forward_backward=[training_client.forward_backward(sent, loss_fn, _loss_config(loss_fn_config))],
            optim=[training_client.optim_step(params)],
        )
        if previous is not None:
            logprobs_D += await _read(previous, metrics)
        previous = submitted
    if previous is not None:
        logprobs_D += await _read(previous, metrics)
    return logprobs_D


@trace.scope
async def prepare_minibatch(
    trajectory_groups_P: list[TrajectoryGroup],
    config: Config,
    kl_reference_client: tinker.SamplingClient | None = None,
) -> tuple[list[tinker.Datum], dict[str, float]]:
    """Advantages, data, and the penalty to the reference policy. Returns (data, metrics)."""
    advantages_P = [
        estimate_advantages(group, config.advantage_estimator, config.gae_gamma, config.gae_lambda)
        for group in trajectory_groups_P
    ]
    data_D, _ = assemble_training_data(trajectory_groups_P, advantages_P, config.records_stability_info)
    metrics: dict[str, float] = {}
    if config.kl_penalty_coef > 0 and kl_reference_client is not None and data_D:
        metrics = await rl_metrics.incorporate_kl_penalty(
            data_D, kl_reference_client, config.kl_penalty_coef, config.kl_discount_factor
        )
    return data_D, metrics


def rollout_usage(trajectory_groups: Sequence[TrajectoryGroup]) -> TokenUsage:
    """Tokens sampled and read."""
    turns = [turn for group in trajectory_groups for traj in group.trajectories_G for turn in traj.transitions]
    cached = sum(turn.ac.prompt_cache_hit_tokens for turn in turns)
    return TokenUsage(
        sampled=sum(len(turn.ac.tokens) for turn in turns),
        prefill_cached=cached,
        prefill_uncached=sum(turn.ob.length for turn in turns) - cached,
    )


def training_usage(data_D: Sequence[tinker.Datum]) -> TokenUsage:
    """Tokens trained on."""
    return TokenUsage(trained=sum(datum.model_input.length for datum in data_D))


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
                strategy=config.effective_rollout_strategy,
                termination=config.effective_termination,
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
                accumulated: list[_Submitted] = []
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
        if data_D:
            metrics.update(rl_metrics.compute_kl_sample_train(data_D, logprobs_D))
        if config.async_config is not None:
            metrics["training_client/step"] = step
            metrics.update(rl_metrics.staleness_metrics(step, [group.sampling_client_step for group in groups]))
        sampler = await self._publish(step + 1)
        if config.compute_post_kl and data_D:
            metrics.update(await rl_metrics.compute_post_kl(data_D, sampler))
        if step + 1 == end and (self.evaluators and config.eval_every > 0):
            metrics.update(await self._evaluate(step + 1, sampler))
        usage = rollout_usage([group.trajectory_group for group in groups]) + training_usage(data_D)
        metrics.update(self.cost.record_step(usage))
        metrics.update(self.error_counter.get_metrics())
        metrics.update(window.get_timing_metrics())
        self._write_timing(step, window)
        self.ml_logger.log_metrics(metrics, step=step)
        return sampler

    async def _train_on(
        self, minibatch: Minibatch, accumulated: list[_Submitted], metrics: dict[str, Any]
    ) -> tuple[list[tinker.Datum], list[Any]]:
        """Train on a minibatch. Returns its data and the trainer's logprobs, both in the order of training."""
        config = self.config
        trajectory_groups = [group.trajectory_group for group in minibatch.groups]
        if config.remove_constant_reward_groups and run_mode(config) == "sync":
            kept = remove_constant_reward_groups(trajectory_groups)
            minibatch.groups[:] = [g for g in minibatch.groups if any(g.trajectory_group is k for k in kept)]
            trajectory_groups = kept
        data, kl_metrics = await prepare_minibatch(trajectory_groups, config, self.kl_reference_client)
        metrics.update(kl_metrics)
        if minibatch.optim_steps and not accumulated and data:
            logprobs = await train_step(
                data,
                self.training_client,
                config.learning_rate,
                minibatch.optim_steps,
                config.training_loss_fn,
                config.loss_fn_config,
                metrics,
                adam_params(config),
            )
            return data, logprobs
        # Gradients add up over the minibatches of a substep.
        submitted = _Submitted()
        if data:
            sent = [without_mask(datum) for datum in data]
            loss_config = _loss_config(config.loss_fn_config)
            submitted.forward_backward.append(
                self.training_client.forward_backward(sent, config.training_loss_fn, loss_config)
            )
        if minibatch.optim_steps and (data or accumulated):
            submitted.optim.append(self.training_client.optim_step(adam_params(config)))
            accumulated.clear()
        elif data:
            accumulated.append(submitted)
        async with trace.scope_span("train_step"):
            return data, await _read(submitted, metrics)

    @trace.scope
    async def _publish(self, step: int, first: bool = False) -> tinker.SamplingClient:
        """Weights of this step for sampling; at a checkpoint step the saved ones."""
        record = self.config.records_stability_info
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


async def _kl_reference_client(service_client: tinker.ServiceClient, config: Config) -> tinker.SamplingClient | None:
    reference = config.kl_reference_config
    if config.kl_penalty_coef <= 0 or reference is None:
        return None
    if reference.load_checkpoint_path is not None:
        return await service_client.create_sampling_client(model_path=reference.load_checkpoint_path)
    return await service_client.create_sampling_client(base_model=reference.base_model)


async def main(config: Config, rollout_executor: Executor | None = None) -> None:
    """Run reinforcement learning; an existing ``log_path`` with a checkpoint is resumed exactly where it stopped."""
    resume: CheckpointRecord | None = checkpoint_utils.get_last_checkpoint(config.log_path)
    ml_logger = ml_log.setup_logging(config.log_path, config.wandb_project, config.wandb_name, config)
    if config.enable_trace:
        trace.trace_init(output_file=f"{config.log_path}/trace_events.jsonl")
    set_rollout_executor(rollout_executor)
    name = resolve_session_display_name(session_name=config.session_name, wandb_name=config.wandb_name)
    model_info.warn_if_renderer_not_recommended(config.model_name, config.renderer_name)
    metadata = recipe_user_metadata(config.recipe_name)
    try:
        with tinker.ServiceClient(
            user_metadata=metadata, display_name=name, base_url=config.base_url
        ) as service_client:
            training_client = await checkpoint_utils.open_training_client(
                service_client,
                model_name=config.model_name,
                lora_rank=config.lora_rank,
                resume_from=resume,
                load_checkpoint_path=config.load_checkpoint_path,
                renderer_name=config.renderer_name,
                user_metadata=metadata,
            )
            dataset, test_dataset = await config.dataset_builder()
            if config.num_epochs > 1:
                dataset = EpochCycledRLDataset(dataset, config.num_epochs)
            evaluators = [build() for build in config.evaluator_builders]
            if test_dataset is not None:
                evaluators.append(
                    RLTestSetEvaluator(
                        test_dataset,
                        max_tokens=config.max_tokens,
                        num_groups_to_log=config.num_groups_to_log,
                        temperature=config.eval_temperature,
                        strategy=config.effective_rollout_strategy,
                        termination=config.effective_termination,
                    )
                )
            end = len(dataset) if config.max_steps is None else min(len(dataset), config.max_steps)
            start = resume.batch if resume is not None and resume.batch is not None else 0
            if resume is not None:
                dropped = ml_logger.store.truncate_metrics(start) if ml_logger.store else 0
                logger.info("resuming at batch %d of %d (%d later metric rows dropped)", start, end, dropped)
            loop = TrainingLoop(
                config,
                training_client,
                CheckpointManager(
                    training_client,
                    service_client,
                    config.log_path,
                    save_every=config.save_every,
                    ttl_seconds=config.ttl_seconds,
                    rolling_save_every=config.rolling_save_every,
                    rolling_ttl_seconds=config.rolling_ttl_seconds,
                    store=ml_logger.store,
                ),
                await _kl_reference_client(service_client, config),
                evaluators,
                dataset,
                ml_logger,
                training_client.get_tokenizer(),
            )
            if resume is not None and resume.final and start >= end:
                logger.info("this run is finished; give a larger max_steps to go on")
                return
            await loop.run(start, end)
    finally:
        set_rollout_executor(None)
        trace.trace_shutdown()
        ml_logger.close()


def run(config: Config) -> None:
    """``main`` for code without an event loop."""
    asyncio.run(main(config))
