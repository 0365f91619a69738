"""The loop and its training step as functions, for training scripts of one's own.

Each ``do_*_training`` trains on the batches ``start_batch``..``end_batch`` in its mode, whatever the configuration says of
modes, and leaves the final checkpoint to its caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import tinker
from tinker_cookbook.checkpoint_utils import CheckpointManager
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.batch_source import WrappedTrajectoryGroup
from tinker_cookbook.rl.config import Config, RunMode
from tinker_cookbook.rl.loop import TrainingLoop
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.metrics import compute_sampling_client_metrics
from tinker_cookbook.rl.rollout_strategy import RolloutStrategy
from tinker_cookbook.rl.rollouts import RolloutErrorCounter
from tinker_cookbook.rl.sampler_weights import SamplingClientReuse, compute_full_batch_metrics_and_get_sampling_client
from tinker_cookbook.rl.train_step import (
    GradientAccumulator,
    adam_params,
    prepare_minibatch,
    rollout_usage,
    train_parts,
    training_data,
    training_usage,
)
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, TrajectoryGroup
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.utils import ml_log, trace
from tinker_cookbook.utils.cost_estimation import CostTracker, TokenUsage


async def _train(
    mode: RunMode,
    start_batch: int,
    end_batch: int,
    num_batches: int,
    config: Config,
    training_client: tinker.TrainingClient,
    kl_reference_client: tinker.SamplingClient | None,
    evaluators: list[SamplingClientEvaluator],
    dataset: RLDataset,
    ml_logger: ml_log.Logger,
    tokenizer: Tokenizer,
    error_counter: RolloutErrorCounter | None,
    strategy: RolloutStrategy | None,
    checkpoint_mgr: CheckpointManager | None,
    cost_tracker: CostTracker | None,
) -> None:
    if checkpoint_mgr is None:
        raise ConfigurationError("give checkpoint_mgr, a CheckpointManager of the run")
    loop = TrainingLoop(
        config,
        training_client,
        checkpoint_mgr,
        kl_reference_client,
        evaluators,
        dataset,
        ml_logger,
        tokenizer,
        mode=mode,
        error_counter=error_counter,
        strategy=strategy,
        cost_tracker=cost_tracker,
        num_batches=num_batches,
    )
    await loop.train(start_batch, end_batch)


async def do_sync_training(
    start_batch: int,
    end_batch: int,
    num_batches: int,
    config: Config,
    training_client: tinker.TrainingClient,
    kl_reference_client: tinker.SamplingClient | None,
    evaluators: list[SamplingClientEvaluator],
    dataset: RLDataset,
    ml_logger: ml_log.Logger,
    tokenizer: Tokenizer,
    error_counter: RolloutErrorCounter | None = None,
    strategy: RolloutStrategy | None = None,
    checkpoint_mgr: CheckpointManager | None = None,
    cost_tracker: CostTracker | None = None,
) -> None:
    """Sample a whole batch, train on it, publish the weights, and so on."""
    await _train(
        "sync",
        start_batch,
        end_batch,
        num_batches,
        config,
        training_client,
        kl_reference_client,
        evaluators,
        dataset,
        ml_logger,
        tokenizer,
        error_counter,
        strategy,
        checkpoint_mgr,
        cost_tracker,
    )


async def do_sync_training_with_stream_minibatch(
    start_batch: int,
    end_batch: int,
    num_batches: int,
    config: Config,
    training_client: tinker.TrainingClient,
    kl_reference_client: tinker.SamplingClient | None,
    evaluators: list[SamplingClientEvaluator],
    dataset: RLDataset,
    ml_logger: ml_log.Logger,
    tokenizer: Tokenizer,
    error_counter: RolloutErrorCounter | None = None,
    strategy: RolloutStrategy | None = None,
    checkpoint_mgr: CheckpointManager | None = None,
    cost_tracker: CostTracker | None = None,
) -> None:
    """The same, but train on minibatches as soon as their groups are done. Needs ``config.stream_minibatch_config``."""
    if config.stream_minibatch_config is None:
        raise ConfigurationError("training in minibatches needs stream_minibatch_config")
    await _train(
        "stream_minibatch",
        start_batch,
        end_batch,
        num_batches,
        config,
        training_client,
        kl_reference_client,
        evaluators,
        dataset,
        ml_logger,
        tokenizer,
        error_counter,
        strategy,
        checkpoint_mgr,
        cost_tracker,
    )


async def do_async_training(
    start_batch: int,
    end_batch: int,
    num_batches: int,
    config: Config,
    training_client: tinker.TrainingClient,
    kl_reference_client: tinker.SamplingClient | None,
    evaluators: list[SamplingClientEvaluator],
    dataset: RLDataset,
    ml_logger: ml_log.Logger,
    tokenizer: Tokenizer,
    error_counter: RolloutErrorCounter | None = None,
    strategy: RolloutStrategy | None = None,
    checkpoint_mgr: CheckpointManager | None = None,
    cost_tracker: CostTracker | None = None,
) -> None:
    """Sample ahead of training, within the window of ``config.async_config``, which is needed."""
    if config.async_config is None:
        raise ConfigurationError("asynchronous training needs async_config")
    await _train(
        "async",
        start_batch,
        end_batch,
        num_batches,
        config,
        training_client,
        kl_reference_client,
        evaluators,
        dataset,
        ml_logger,
        tokenizer,
        error_counter,
        strategy,
        checkpoint_mgr,
        cost_tracker,
    )


@trace.scope
async def do_train_step_and_get_sampling_client(
    config: Config,
    i_batch: int,
    training_client: tinker.TrainingClient,
    checkpoint_mgr: CheckpointManager,
    kl_reference_client: tinker.SamplingClient | None,
    tokenizer: Tokenizer,
    env_group_builders_P: Sequence[EnvGroupBuilder],
    trajectory_groups_P: list[TrajectoryGroup],
    cost_tracker: CostTracker | None = None,
    sampling_client_reuse: SamplingClientReuse | None = None,
) -> tuple[tinker.SamplingClient, dict[str, Any]]:
    """Train on the groups of batch ``i_batch``. Returns (sampler for the next batch, metrics)."""
    data_D, metrics, usage = await prepare_minibatch(
        env_group_builders_P,
        trajectory_groups_P,
        tokenizer,
        kl_reference_client,
        config.kl_penalty_coef,
        config.kl_discount_factor,
    )
    logprobs_D = await train_parts(
        data_D,
        training_client,
        adam_params(config),
        config.num_substeps,
        config.training_loss_fn(),
        config.loss_fn_config,
        metrics,
    )
    sampler, closing = await compute_full_batch_metrics_and_get_sampling_client(
        training_client,
        checkpoint_mgr,
        i_batch + 1,
        data_D,
        logprobs_D,
        config.compute_post_kl,
        config.records_stability_info(),
        usage + training_usage(data_D),
        cost_tracker,
        sampling_client_reuse,
    )
    return sampler, {**metrics, **closing}


def _takes_all(_: WrappedTrajectoryGroup | None) -> bool:
    return True


@trace.scope
async def do_train_step_streaming_and_get_sampling_client(
    config: Config,
    i_batch: int,
    trajectory_groups_queue: asyncio.Queue[WrappedTrajectoryGroup | None],
    training_client: tinker.TrainingClient,
    checkpoint_mgr: CheckpointManager,
    kl_reference_client: tinker.SamplingClient | None,
    tokenizer: Tokenizer,
    trajectory_group_filter: Callable[[WrappedTrajectoryGroup | None], bool] = _takes_all,
    cost_tracker: CostTracker | None = None,
) -> tuple[tinker.SamplingClient | None, dict[str, Any], list[WrappedTrajectoryGroup]] | None:
    """One training step on groups that arrive in a queue, in minibatches as ``config.stream_minibatch_config`` says.

    A group that the filter refuses is left out and another one is waited for; None counts as a group without data. Returns
    (sampler for the next batch, metrics, groups); None where no group had data.
    """
    stream = config.stream_minibatch_config
    if stream is None:
        raise ConfigurationError("training in minibatches needs stream_minibatch_config")
    parts = config.num_substeps * stream.num_minibatches
    edges = [round((part + 1) * stream.groups_per_batch / parts) for part in range(parts)]
    groups: list[WrappedTrajectoryGroup] = []
    data_D: list[tinker.Datum] = []
    logprobs_D: list[Any] = []
    metrics: dict[str, Any] = {}
    gradients = GradientAccumulator(training_client, config)
    usage, taken = TokenUsage(), 0
    for part, edge in enumerate(edges, start=1):
        minibatch: list[WrappedTrajectoryGroup] = []
        while taken < edge:
            item = await trajectory_groups_queue.get()
            if trajectory_group_filter(item):
                taken += 1
                minibatch += [item] if item is not None else []
        data, kl_metrics, scored = await training_data(
            [group.trajectory_group for group in minibatch],
            kl_reference_client,
            config.kl_penalty_coef,
            config.kl_discount_factor,
        )
        metrics.update(kl_metrics)
        logprobs_D += await gradients.add(data, part % stream.num_minibatches == 0, metrics)
        data_D += data
        groups += minibatch
        usage += scored
    if not data_D:
        return None
    trajectory_groups_P = [group.trajectory_group for group in groups]
    taglist_P = [group.env_group_builder.logging_tags() for group in groups]
    metrics.update(compute_trajectory_metrics(trajectory_groups_P, taglist_P))
    metrics.update(compute_sampling_client_metrics(groups))
    sampler, closing = await compute_full_batch_metrics_and_get_sampling_client(
        training_client,
        checkpoint_mgr,
        i_batch + 1,
        data_D,
        logprobs_D,
        config.compute_post_kl,
        config.records_stability_info(),
        usage + rollout_usage(trajectory_groups_P) + training_usage(data_D),
        cost_tracker,
    )
    return sampler, {**metrics, **closing}, groups
