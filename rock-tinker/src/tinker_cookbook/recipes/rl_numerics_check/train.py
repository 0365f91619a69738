"""Reinforcement learning on long episodes of many turns, whose purpose is the distance of sampler and trainer."""

from __future__ import annotations

import chz

from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.rl_numerics_check.env import (
    DEFAULT_MAX_TRAJECTORY_TOKENS,
    CountingDatasetBuilder,
    CountingTaskConfig,
)
from tinker_cookbook.recipes.settings import RLSettings
from tinker_cookbook.rl import train


@chz.chz
class CLIConfig(RLSettings):
    """``corpus_path``: a text file, or "example" for texts that come with the package; None is WikiText-103 from the hub."""

    model_name: str = "Qwen/Qwen3.6-35B-A3B:peft:262144"
    learning_rate: float = 4e-5
    group_size: int = 16
    groups_per_batch: int = 16
    max_tokens: int = 1024
    max_trajectory_tokens: int = DEFAULT_MAX_TRAJECTORY_TOKENS
    task: CountingTaskConfig = chz.field(default_factory=CountingTaskConfig)
    seed: int = 0
    eval_every: int = 0
    # Beyond the common set
    corpus_path: str | None = None


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, "numerics", f"{cli.group_size}x{cli.groups_per_batch}", cli.learning_rate)
    builder = CountingDatasetBuilder(
        batch_size=cli.groups_per_batch,
        group_size=cli.group_size,
        model_name_for_tokenizer=cli.model_name,
        renderer_name=name,
        task=cli.task,
        n_batches=max(1000, cli.max_steps or 0),
        seed=cli.seed,
        max_trajectory_tokens=cli.max_trajectory_tokens,
        max_generation_tokens=cli.max_tokens,
        corpus_path=cli.corpus_path,
    )
    await train.main(entry.to_rl_config(cli, builder, log_path, "rl_numerics_check", renderer_name=name))


if __name__ == "__main__":
    entry.run(cli_main)
