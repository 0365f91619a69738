"""Reinforcement learning on arithmetic and mathematics."""

from __future__ import annotations

import chz

from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder
from tinker_cookbook.recipes.math_rl.math_env import get_math_dataset_builder
from tinker_cookbook.recipes.settings import RLSettings
from tinker_cookbook.rl import train
from tinker_cookbook.rl.types import RLDatasetBuilder


@chz.chz
class CLIConfig(RLSettings):
    """``env``: arithmetic, gsm8k, math, polaris or deepmath."""

    model_name: str = "Qwen/Qwen3.5-9B"
    env: str = "arithmetic"
    seed: int = 0
    group_size: int = 4
    groups_per_batch: int = 100
    learning_rate: float = 1e-5
    max_tokens: int = 5
    max_steps_off_policy: int | None = None
    stream_minibatch_config: train.StreamMinibatchConfig | None = None
    # Beyond the common set
    largest: int = 100
    max_test_problems: int | None = None


def get_dataset_builder(cli: CLIConfig, renderer_name: str) -> RLDatasetBuilder:
    """The dataset of an environment."""
    if cli.env == "arithmetic":
        return ArithmeticDatasetBuilder(
            batch_size=cli.groups_per_batch,
            model_name_for_tokenizer=cli.model_name,
            renderer_name=renderer_name,
            group_size=cli.group_size,
            n_batches=max(100, cli.max_steps or 0),
            seed=cli.seed,
            largest=cli.largest,
        )
    builder = get_math_dataset_builder(
        cli.env, cli.groups_per_batch, cli.model_name, renderer_name, cli.group_size, cli.seed
    )
    return chz.replace(builder, max_test_problems=cli.max_test_problems)


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(
        cli, f"math-rl-{cli.env}", f"{cli.group_size}x{cli.groups_per_batch}", cli.learning_rate
    )
    config = entry.to_rl_config(cli, get_dataset_builder(cli, name), log_path, "math_rl", renderer_name=name)
    await train.main(config)


if __name__ == "__main__":
    entry.run(cli_main)
