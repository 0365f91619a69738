"""The student samples and moves towards its teacher."""

from __future__ import annotations

from typing import Any

import chz

from tinker_cookbook.cli_utils import LogdirBehavior
from tinker_cookbook.distillation import train_on_policy
from tinker_cookbook.distillation.datasets import DistillationDatasetConfig, PromptOnlyDatasetBuilder, TeacherConfig
from tinker_cookbook.recipes import entry
from tinker_cookbook.utils.config_fields import shared_values


@chz.chz
class CLIConfig:
    """``dataset``: deepmath, tulu3, or a JSONL file with prompts; "example" comes with the package."""

    model_name: str = "Qwen/Qwen3.5-9B-Base"
    lora_rank: int = 128
    renderer_name: str | None = None
    load_checkpoint_path: str | None = None
    teacher_model: str = "Qwen/Qwen3.5-9B"
    teacher_checkpoint: str | None = None
    dataset: str = "deepmath"
    group_size: int = 4
    groups_per_batch: int = 1024
    learning_rate: float = 1e-4
    max_tokens: int = 4096
    temperature: float = 1.0
    kl_penalty_coef: float = 1.0
    kl_discount_factor: float = 0.0
    num_substeps: int = 1
    loss_fn: str = "importance_sampling"
    loss_fn_config: dict[str, Any] | None = None
    log_path: str | None = None
    wandb_project: str | None = None
    wandb_name: str | None = None
    session_name: str | None = None
    compute_post_kl: bool = False
    eval_every: int = 20
    save_every: int = 20
    base_url: str | None = None
    behavior_if_log_dir_exists: LogdirBehavior = "ask"
    max_steps: int | None = None


def prompts_of(dataset: str) -> str:
    """Name or path of a dataset of prompts."""
    return entry.example_data("conversations.jsonl") if dataset == "example" else dataset


def to_config(
    cli: Any, log_path: str, recipe: str, datasets: list[DistillationDatasetConfig], renderer_name: str
) -> Any:
    """Configuration of the run with every field that the recipe has, too."""
    values = shared_values(cli, train_on_policy.Config)
    values.update(log_path=log_path, recipe_name=recipe, dataset_configs=datasets, renderer_name=renderer_name)
    return train_on_policy.Config(**values)


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, "on-policy-distillation", cli.learning_rate)
    builder = PromptOnlyDatasetBuilder(
        dataset_name=prompts_of(cli.dataset),
        groups_per_batch=cli.groups_per_batch,
        group_size=cli.group_size,
        model_name_for_tokenizer=cli.model_name,
        renderer_name=name,
    )
    teacher = TeacherConfig(base_model=cli.teacher_model, load_checkpoint_path=cli.teacher_checkpoint)
    dataset = DistillationDatasetConfig(
        dataset_builder=builder, teacher_config=teacher, groups_per_batch=cli.groups_per_batch
    )
    await train_on_policy.main(to_config(cli, log_path, "on_policy_distillation", [dataset], name))


if __name__ == "__main__":
    entry.run(cli_main)
