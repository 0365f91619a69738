"""Self-play reinforcement learning."""

from __future__ import annotations

import chz

from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.multiplayer_rl.text_arena.env import GameDatasetBuilder
from tinker_cookbook.recipes.settings import RLSettings
from tinker_cookbook.rl import train


@chz.chz
class CLIConfig(RLSettings):
    """``batch_size`` counts trajectories; each game has two."""

    model_name: str = "Qwen/Qwen3.5-4B"
    renderer_name: str | None = "qwen3_5_disable_thinking"
    game_name: str = "TicTacToe-v0"
    test_opponent: str = "base_model"
    batch_size: int = 512
    num_train_datapoints: int = 40960
    num_test_datapoints: int = 128
    learning_rate: float = 3e-5
    max_tokens: int = 64
    eval_every: int = 5


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, "text-arena", cli.batch_size, cli.learning_rate)
    builder = GameDatasetBuilder(
        game_name=cli.game_name,
        test_opponent=cli.test_opponent,
        batch_size=cli.batch_size,
        num_train_datapoints=cli.num_train_datapoints,
        num_test_datapoints=cli.num_test_datapoints,
        renderer_name=name,
        model_name=cli.model_name,
        max_tokens=cli.max_tokens,
        base_url=cli.base_url,
    )
    await train.main(entry.to_rl_config(cli, builder, log_path, "text_arena", renderer_name=name))


if __name__ == "__main__":
    entry.run(cli_main)
