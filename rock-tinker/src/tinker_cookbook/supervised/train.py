"""Supervised fine-tuning."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import chz

from tinker_cookbook.checkpoint_utils import DEFAULT_TTL_SECONDS
from tinker_cookbook.eval.evaluators import Evaluator, EvaluatorBuilder
from tinker_cookbook.run_setup import open_run
from tinker_cookbook.supervised.loop import LoopSettings, SubmittedBatch, SupervisedLoop, run_evals
from tinker_cookbook.supervised.nll_evaluator import NLLEvaluator
from tinker_cookbook.supervised.types import SupervisedDatasetBuilder
from tinker_cookbook.utils.lr_scheduling import LRSchedule

__all__ = ["Config", "Evaluator", "EvaluatorBuilder", "SubmittedBatch", "main", "run_evals"]


@chz.chz
class Config:
    """One supervised run. ``save_every``, ``eval_every`` and so on count steps; 0 switches off.

    ``seed``: order of the data within each epoch, and a new adapter's first weights; None: the same order in every run,
    weights as the server draws them.
    """

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
    save_every_tokens: int = 0
    save_every_seconds: float = 0.0
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
    # Beyond the common set
    seed: int | None = None


async def main(config: Config) -> None:
    """Fine-tune; an existing ``log_path`` with a checkpoint is resumed where it stopped."""
    await run_supervised(config, SupervisedLoop)


async def run_supervised(config: Any, loop_class: type[SupervisedLoop]) -> None:
    """Set up clients, data and logging, and run a loop of this class."""
    dataset, test_dataset = await asyncio.to_thread(config.dataset_builder)  # bad data are refused first
    async with open_run(config, seed=config.seed) as run:
        evaluators = [build() for build in config.evaluator_builders]
        if test_dataset is not None:
            evaluators.append(NLLEvaluator.from_dataset(test_dataset, "test", run.tokenizer))
        loop = loop_class(
            LoopSettings.from_config(config),
            run.training_client,
            run.checkpoints,
            dataset,
            evaluators,
            [build() for build in config.infrequent_evaluator_builders],
            run.ml_logger,
            run.tokenizer,
        )
        await loop.setup(run.service_client, config, run.resume)
        await loop.run(run.resume)
