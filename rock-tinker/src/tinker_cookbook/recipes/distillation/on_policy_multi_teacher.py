"""Two datasets, each with a teacher of its own."""

from __future__ import annotations

from typing import Any

import chz

from tinker_cookbook.cli_utils import LogdirBehavior
from tinker_cookbook.distillation import train_on_policy
from tinker_cookbook.distillation.datasets import DistillationDatasetConfig, PromptOnlyDatasetBuilder, TeacherConfig
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.distillation.on_policy_distillation import prompts_of, to_config


@chz.chz
class CLIConfig:
    """``deepmath_dataset`` and ``tulu3_dataset`` may name other prompts (a JSONL file or "example")."""

    model_name: str = "Qwen/Qwen3.5-9B"
    lora_rank: int = 128
    renderer_name: str | None = None
    load_checkpoint_path: str | None = None
    deepmath_teacher_model: str = "Qwen/Qwen3.6-27B"
    deepmath_teacher_checkpoint: str | None = None
    tulu3_teacher_model: str = "Qwen/Qwen3.5-397B-A17B"
    tulu3_teacher_checkpoint: str | None = None
    deepmath_groups_per_batch: int = 512
    tulu3_groups_per_batch: int = 512
    group_size: int = 4
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
    # Beyond the common set
    deepmath_dataset: str = "deepmath"
    tulu3_dataset: str = "tulu3"


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, "multi-teacher", cli.learning_rate)
    datasets = []
    for prompts, model, checkpoint, groups in (
        (
            cli.deepmath_dataset,
            cli.deepmath_teacher_model,
            cli.deepmath_teacher_checkpoint,
            cli.deepmath_groups_per_batch,
        ),
        (cli.tulu3_dataset, cli.tulu3_teacher_model, cli.tulu3_teacher_checkpoint, cli.tulu3_groups_per_batch),
    ):
        builder = PromptOnlyDatasetBuilder(
            dataset_name=prompts_of(prompts),
            groups_per_batch=groups,
            group_size=cli.group_size,
            model_name_for_tokenizer=cli.model_name,
            renderer_name=name,
        )
        teacher = TeacherConfig(base_model=model, load_checkpoint_path=checkpoint)
        datasets.append(
            DistillationDatasetConfig(dataset_builder=builder, teacher_config=teacher, groups_per_batch=groups)
        )
    await train_on_policy.main(to_config(cli, log_path, "on_policy_multi_teacher", datasets, name))


if __name__ == "__main__":
    entry.run(cli_main)
