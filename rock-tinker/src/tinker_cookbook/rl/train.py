"""Reinforcement learning: sample groups, turn them into data, step the optimizer, publish new weights.

``loop`` holds the one loop of all modes, ``batch_source`` where its batches come from, ``train_step`` what a step is.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from typing import Any

import tinker
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator, SamplingClientEvaluatorBuilder
from tinker_cookbook.rl.batch_source import WrappedTrajectoryGroup, gather_with_progress
from tinker_cookbook.rl.config import AsyncConfig, Config, KLReferenceConfig, LossFnType, StreamMinibatchConfig
from tinker_cookbook.rl.dataset_utils import EpochCycledRLDataset
from tinker_cookbook.rl.discarded_work import (
    DISCARDED_WORK_LOG_INTERVAL_SECONDS,
    DiscardedWorkLog,
    count_discarded_rollout,
    drop_constant_reward_group,
)
from tinker_cookbook.rl.loop import TrainingLoop
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
from tinker_cookbook.rl.rollout_report import print_group, run_evaluations_parallel, run_single_evaluation
from tinker_cookbook.rl.rollouts import do_group_rollout_and_filter_constant_reward, set_rollout_executor
from tinker_cookbook.rl.sampler_weights import (
    SamplingClientReuse,
    compute_full_batch_metrics_and_get_sampling_client,
    save_checkpoint_and_get_sampling_client,
)
from tinker_cookbook.rl.train_step import prepare_minibatch, rollout_usage, train_step, training_usage
from tinker_cookbook.rl.training_modes import (
    do_async_training,
    do_sync_training,
    do_sync_training_with_stream_minibatch,
    do_train_step_and_get_sampling_client,
    do_train_step_streaming_and_get_sampling_client,
)
from tinker_cookbook.rl.types import RLDataset
from tinker_cookbook.run_setup import open_run

logger = logging.getLogger(__name__)

__all__ = [
    "DISCARDED_WORK_LOG_INTERVAL_SECONDS",
    "AsyncConfig",
    "Config",
    "DiscardedWorkLog",
    "KLReferenceConfig",
    "LossFnType",
    "SamplingClientEvaluatorBuilder",
    "SamplingClientReuse",
    "StreamMinibatchConfig",
    "TrainingLoop",
    "WrappedTrajectoryGroup",
    "compute_full_batch_metrics_and_get_sampling_client",
    "count_discarded_rollout",
    "do_async_training",
    "do_group_rollout_and_filter_constant_reward",
    "do_sync_training",
    "do_sync_training_with_stream_minibatch",
    "do_train_step_and_get_sampling_client",
    "do_train_step_streaming_and_get_sampling_client",
    "drop_constant_reward_group",
    "gather_with_progress",
    "main",
    "prepare_minibatch",
    "print_group",
    "rollout_usage",
    "run_evaluations_parallel",
    "run_single_evaluation",
    "save_checkpoint_and_get_sampling_client",
    "train_step",
    "training_usage",
]


async def _kl_reference_client(service_client: tinker.ServiceClient, config: Config) -> tinker.SamplingClient | None:
    reference = config.kl_reference_config
    if config.kl_penalty_coef <= 0 or reference is None:
        return None
    if reference.load_checkpoint_path is not None:
        return await service_client.create_sampling_client(model_path=reference.load_checkpoint_path)
    return await service_client.create_sampling_client(base_model=reference.base_model)


def _evaluators(config: Config, test_dataset: RLDataset | None) -> list[SamplingClientEvaluator]:
    evaluators = [build() for build in config.evaluator_builders]
    if test_dataset is not None:
        evaluators.append(
            RLTestSetEvaluator(
                test_dataset,
                max_tokens=config.max_tokens,
                num_groups_to_log=config.num_groups_to_log,
                temperature=config.eval_temperature,
                strategy=config.effective_rollout_strategy(),
                termination=config.effective_termination(),
            )
        )
    return evaluators


async def main(config: Config, rollout_executor: Executor | None = None) -> None:
    """Run reinforcement learning; an existing ``log_path`` with a checkpoint is resumed exactly where it stopped."""
    await run_loop(config, TrainingLoop, rollout_executor)


async def run_loop(
    config: Config,
    loop_class: type[TrainingLoop],
    rollout_executor: Executor | None = None,
    logged_config: Any | None = None,
    **extra: Any,
) -> None:
    """Set up clients, data and logging, and run a loop of this class. ``extra`` goes to its constructor;
    ``logged_config`` is written to the run's files instead of ``config``."""
    set_rollout_executor(rollout_executor)
    try:
        dataset, test_dataset = await config.dataset_builder()  # bad data are refused before anything is opened
        if config.num_epochs > 1:
            dataset = EpochCycledRLDataset(dataset, config.num_epochs, shuffle_seed=0)
        async with open_run(config, seed=config.sampling_seed, logged_config=logged_config) as run:
            end = len(dataset) if config.max_steps is None else min(len(dataset), config.max_steps)
            resume, store = run.resume, run.ml_logger.store
            start = resume.batch if resume is not None and resume.batch is not None else 0
            if resume is not None and resume.final and start >= end:
                logger.info("this run is finished; give a larger max_steps to go on")
                return
            if resume is not None:
                dropped = store.truncate_metrics(start) if store else 0
                logger.info("resuming at batch %d of %d (%d later metric rows dropped)", start, end, dropped)
            loop = loop_class(
                config,
                run.training_client,
                run.checkpoints,
                await _kl_reference_client(run.service_client, config),
                _evaluators(config, test_dataset),
                dataset,
                run.ml_logger,
                run.tokenizer,
                **extra,
            )
            if resume is not None and store is not None:
                loop.cost.restore(store.read_metrics())
            await loop.setup(run.service_client, resume)
            await loop.run(start, end)
    finally:
        set_rollout_executor(None)


def run(config: Config) -> None:
    """``main`` for code without an event loop."""
    asyncio.run(main(config))
