"""The student samples and moves towards its teacher."""

from __future__ import annotations

import chz

from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.distillation.on_policy_config import OnPolicyCLIConfig, TaughtPrompts, run


@chz.chz
class CLIConfig(OnPolicyCLIConfig):
    """``dataset``: deepmath, tulu3, or a JSONL file with prompts; "example" comes with the package."""

    model_name: str = "Qwen/Qwen3.5-9B-Base"
    teacher_model: str = "Qwen/Qwen3.5-9B"
    teacher_checkpoint: str | None = None
    dataset: str = "deepmath"
    groups_per_batch: int = 1024


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    taught = TaughtPrompts(cli.dataset, cli.teacher_model, cli.teacher_checkpoint, cli.groups_per_batch)
    await run(cli, "on_policy_distillation", "on-policy-distillation", [taught])


if __name__ == "__main__":
    entry.run(cli_main)
