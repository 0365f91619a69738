"""Settings that the recipes of on-policy distillation share, and what they turn into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import chz

from tinker_cookbook.distillation import train_on_policy
from tinker_cookbook.distillation.datasets import DistillationDatasetConfig, PromptOnlyDatasetBuilder, TeacherConfig
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.settings import TrainingSettings
from tinker_cookbook.utils.config_fields import shared_values


@chz.chz
class OnPolicyCLIConfig(TrainingSettings):
    """Everything but datasets and teachers. ``sampling_seed``: see ``rl.train.Config``."""

    model_name: str
    lora_rank: int = 128
    group_size: int = 4
    learning_rate: float = 1e-4
    max_tokens: int = 4096
    temperature: float = 1.0
    kl_penalty_coef: float = 1.0
    kl_discount_factor: float = 0.0
    num_substeps: int = 1
    loss_fn: str = "importance_sampling"
    loss_fn_config: dict[str, Any] | None = None
    compute_post_kl: bool = False
    # Beyond the common set
    sampling_seed: int | None = None


@dataclass(frozen=True)
class TaughtPrompts:
    """``prompts``: deepmath, tulu3, a JSONL file, or "example", which comes with the package."""

    prompts: str
    teacher_model: str
    teacher_checkpoint: str | None
    groups_per_batch: int


async def run(cli: OnPolicyCLIConfig, recipe: str, folder: str, taught: Sequence[TaughtPrompts]) -> None:
    """Distill the teachers into the student, each on its own prompts; ``folder`` begins the name of the run's folder."""
    name = await entry.renderer_name(cli)
    datasets = [
        DistillationDatasetConfig(
            dataset_builder=PromptOnlyDatasetBuilder(
                dataset_name=entry.example_data("conversations.jsonl") if row.prompts == "example" else row.prompts,
                groups_per_batch=row.groups_per_batch,
                group_size=cli.group_size,
                model_name_for_tokenizer=cli.model_name,
                renderer_name=name,
            ),
            teacher_config=TeacherConfig(base_model=row.teacher_model, load_checkpoint_path=row.teacher_checkpoint),
            groups_per_batch=row.groups_per_batch,
        )
        for row in taught
    ]
    values = shared_values(cli, train_on_policy.Config)
    values.update(
        log_path=entry.run_folder(cli, folder, cli.learning_rate),
        recipe_name=recipe,
        dataset_configs=datasets,
        renderer_name=name,
    )
    await train_on_policy.main(train_on_policy.Config(**values))
