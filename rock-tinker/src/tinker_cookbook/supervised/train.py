"""Supervised fine-tuning."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import chz

import tinker
from tinker_cookbook import checkpoint_utils, model_info
from tinker_cookbook.checkpoint_utils import DEFAULT_TTL_SECONDS, CheckpointManager
from tinker_cookbook.eval.evaluators import EvaluatorBuilder
from tinker_cookbook.supervised.loop import LoopSettings, SubmittedBatch, SupervisedLoop, run_evals
from tinker_cookbook.supervised.nll_evaluator import NLLEvaluator
from tinker_cookbook.supervised.types import SupervisedDatasetBuilder
from tinker_cookbook.utils import ml_log, trace
from tinker_cookbook.utils.git_rev import recipe_user_metadata
from tinker_cookbook.utils.lr_scheduling import LRSchedule
from tinker_cookbook.utils.session_naming import resolve_session_display_name

__all__ = ["Config", "SubmittedBatch", "main", "run_evals"]


@chz.chz
class Config:
    """One supervised run. ``save_every``, ``eval_every`` and so on count steps; 0 switches off."""

    log_path: str = chz.field(munger=lambda _, path: str(Path(path).expanduser()))
    model_name: str
    dataset_builder: SupervisedDatasetBuilder
    recipe_name: str | None = None
    load_checkpoint_path: str | None = None
    renderer_name: str | None = None
    learning_rate: float = 1e-4
    lr_schedule: LRSchedule = "linear"
    num_epochs: int = 1
    lora_rank: int = 32
    base_url: str | None = None
    evaluator_builders: list[EvaluatorBuilder] = chz.field(default_factory=list)
    infrequent_evaluator_builders: list[EvaluatorBuilder] = chz.field(default_factory=list)
    save_every: int = 20
    save_every_tokens: int | None = None
    save_every_seconds: float | None = None
    eval_every: int = 10
    infrequent_eval_every: int = 100
    ttl_seconds: int | None = DEFAULT_TTL_SECONDS
    rolling_save_every: int = 0
    rolling_ttl_seconds: int = 7200
    async_periodic_saves: bool = False
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    wandb_project: str | None = None
    wandb_name: str | None = None
    session_name: str | None = None
    enable_trace: bool = False
    span_chart_every: int = 0
    max_steps: int | None = None
    submit_ahead: int = 1


async def main(config: Config) -> None:
    """Fine-tune; an existing ``log_path`` with a checkpoint is resumed where it stopped."""
    await run_supervised(config, SupervisedLoop)


async def run_supervised(config: Any, loop_class: type[SupervisedLoop], **extra: Any) -> None:
    """Set up clients, data and logging, and run a loop of this class. ``extra`` goes to its constructor."""
    resume = checkpoint_utils.get_last_checkpoint(config.log_path)
    ml_logger = ml_log.setup_logging(config.log_path, config.wandb_project, config.wandb_name, config)
    if config.enable_trace:
        trace.trace_init(output_file=f"{config.log_path}/trace_events.jsonl")
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
            dataset, test_dataset = await asyncio.to_thread(config.dataset_builder)
            tokenizer = training_client.get_tokenizer()
            evaluators = [build() for build in config.evaluator_builders]
            if test_dataset is not None:
                evaluators.append(NLLEvaluator.from_dataset(test_dataset, "test", tokenizer))
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
                LoopSettings.from_config(config),
                training_client,
                checkpoints,
                dataset,
                evaluators,
                [build() for build in config.infrequent_evaluator_builders],
                ml_logger,
                tokenizer,
                **extra,
            )
            await loop.setup(service_client, config, resume)
            await loop.run(resume)
    finally:
        trace.trace_shutdown()
        ml_logger.close()
