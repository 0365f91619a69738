"""Two datasets, each with a teacher of its own."""

from __future__ import annotations

import chz

from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.distillation.on_policy_config import OnPolicyCLIConfig, TaughtPrompts, run


@chz.chz
class CLIConfig(OnPolicyCLIConfig):
    """``deepmath_dataset`` and ``tulu3_dataset`` may name other prompts (a JSONL file or "example")."""

    model_name: str = "Qwen/Qwen3.5-9B"
    deepmath_teacher_model: str = "Qwen/Qwen3.6-27B"
    deepmath_teacher_checkpoint: str | None = None
    tulu3_teacher_model: str = "Qwen/Qwen3.5-397B-A17B"
    tulu3_teacher_checkpoint: str | None = None
    deepmath_groups_per_batch: int = 512
    tulu3_groups_per_batch: int = 512
    # Beyond the common set
    deepmath_dataset: str = "deepmath"
    tulu3_dataset: str = "tulu3"


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    deepmath = TaughtPrompts(
        cli.deepmath_dataset,
        cli.deepmath_teacher_model,
        cli.deepmath_teacher_checkpoint,
        cli.deepmath_groups_per_batch,
    )
    tulu3 = TaughtPrompts(
        cli.tulu3_dataset, cli.tulu3_teacher_model, cli.tulu3_teacher_checkpoint, cli.tulu3_groups_per_batch
    )
    await run(cli, "on_policy_multi_teacher", "multi-teacher", [deepmath, tulu3])


if __name__ == "__main__":
    entry.run(cli_main)
