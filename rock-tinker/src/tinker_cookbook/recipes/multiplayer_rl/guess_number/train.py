"""Multi-turn reinforcement learning against a programmed partner."""

from __future__ import annotations

import chz

from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.multiplayer_rl.guess_number.env import GuessNumberDatasetBuilder
from tinker_cookbook.recipes.settings import RLSettings
from tinker_cookbook.rl import train


@chz.chz
class CLIConfig(RLSettings):
    """``largest``: numbers lie between 0 and it. ``seed``: which numbers, in which order."""

    model_name: str = "Qwen/Qwen3.5-4B"
    renderer_name: str | None = "qwen3_5_disable_thinking"
    group_size: int = 8
    batch_size: int = 32
    learning_rate: float = 3e-5
    max_tokens: int = 64
    eval_every: int = 5
    # Beyond the common set
    largest: int = 1024
    num_test: int = 32
    seed: int = 0


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, "guess-number", f"{cli.group_size}x{cli.batch_size}", cli.learning_rate)
    builder = GuessNumberDatasetBuilder(
        batch_size=cli.batch_size,
        group_size=cli.group_size,
        renderer_name=name,
        model_name_for_tokenizer=cli.model_name,
        largest=cli.largest,
        num_test=cli.num_test,
        num_batches=max(30, cli.max_steps or 0),
        seed=cli.seed,
    )
    await train.main(entry.to_rl_config(cli, builder, log_path, "guess_number", renderer_name=name))


if __name__ == "__main__":
    entry.run(cli_main)
