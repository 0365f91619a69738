"""Reinforcement learning: sample groups, turn them into data, step the optimizer, publish new weights.

``loop`` holds the one loop of all modes, ``batch_source`` where its batches come from, ``train_step`` what a step is.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from typing import Any

import tinker
from tinker_cookbook import checkpoint_utils, model_info
from tinker_cookbook.checkpoint_utils import CheckpointManager, CheckpointRecord
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.rl.batch_source import WrappedTrajectoryGroup, gather_with_progress
from tinker_cookbook.rl.config import AsyncConfig, Config, KLReferenceConfig, StreamMinibatchConfig
from tinker_cookbook.rl.dataset_utils import EpochCycledRLDataset
from tinker_cookbook.rl.loop import TrainingLoop
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
from tinker_cookbook.rl.rollout_report import run_evaluations
from tinker_cookbook.rl.rollouts import set_rollout_executor
from tinker_cookbook.rl.train_step import prepare_minibatch, rollout_usage, train_step, training_usage
from tinker_cookbook.rl.types import RLDataset
from tinker_cookbook.utils import ml_log, trace
from tinker_cookbook.utils.git_rev import recipe_user_metadata
from tinker_cookbook.utils.session_naming import resolve_session_display_name

logger = logging.getLogger(__name__)

__all__ = [
    "AsyncConfig",
    "Config",
    "KLReferenceConfig",
    "StreamMinibatchConfig",
    "TrainingLoop",
    "WrappedTrajectoryGroup",
    "gather_with_progress",
    "main",
    "prepare_minibatch",
    "rollout_usage",
    "run_evaluations",
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
                strategy=config.effective_rollout_strategy,
                termination=config.effective_termination,
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
    resume: CheckpointRecord | None = checkpoint_utils.get_last_checkpoint(config.log_path)
    ml_logger = ml_log.setup_logging(
        config.log_path, config.wandb_project, config.wandb_name, logged_config if logged_config is not None else config
    )
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
                seed=config.sampling_seed,
            )
            dataset, test_dataset = await config.dataset_builder()
            if config.num_epochs > 1:
                dataset = EpochCycledRLDataset(dataset, config.num_epochs)
            end = len(dataset) if config.max_steps is None else min(len(dataset), config.max_steps)
            start = resume.batch if resume is not None and resume.batch is not None else 0
            if resume is not None and resume.final and start >= end:
                logger.info("this run is finished; give a larger max_steps to go on")
                return
            if resume is not None:
                dropped = ml_logger.store.truncate_metrics(start) if ml_logger.store else 0
                logger.info("resuming at batch %d of %d (%d later metric rows dropped)", start, end, dropped)
            checkpoints = CheckpointManager(
                training_client,
                service_client,
                config.log_path,
                save_every=config.save_every,
                ttl_seconds=config.ttl_seconds,
                rolling_save_every=config.rolling_save_every,
                rolling_ttl_seconds=config.rolling_ttl_seconds,
                store=ml_logger.store,
            )
            loop = loop_class(
                config,
                training_client,
                checkpoints,
                await _kl_reference_client(service_client, config),
                _evaluators(config, test_dataset),
                dataset,
                ml_logger,
                training_client.get_tokenizer(),
                **extra,
            )
            if resume is not None and ml_logger.store is not None:
                loop.cost.restore(ml_logger.store.read_metrics())
            await loop.setup(service_client, resume)
            await loop.run(start, end)
    finally:
        set_rollout_executor(None)
        trace.trace_shutdown()
        ml_logger.close()


def run(config: Config) -> None:
    """``main`` for code without an event loop."""
    asyncio.run(main(config))
