"""Multi-turn reinforcement learning against a second model."""

from __future__ import annotations

import chz

from tinker_cookbook import model_info
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.multiplayer_rl.twenty_questions.env import TwentyQuestionsDatasetBuilder
from tinker_cookbook.recipes.settings import RLSettings
from tinker_cookbook.rl import train


@chz.chz
class CLIConfig(RLSettings):
    """``answerer_model_name``: the model that knows the object."""

    model_name: str = "Qwen/Qwen3.5-4B"
    renderer_name: str | None = "qwen3_5_disable_thinking"
    group_size: int = 8
    num_epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 3e-5
    max_tokens: int = 20
    eval_every: int = 5
    # Beyond the common set
    answerer_model_name: str = "Qwen/Qwen3.5-9B"
    answerer_renderer_name: str | None = None


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    answerer = cli.answerer_renderer_name or model_info.get_recommended_renderer_names(cli.answerer_model_name)[-1]
    log_path = entry.run_folder(cli, "twenty-questions", f"{cli.group_size}x{cli.batch_size}", cli.learning_rate)
    builder = TwentyQuestionsDatasetBuilder(
        batch_size=cli.batch_size,
        group_size=cli.group_size,
        renderer_name=name,
        model_name_for_tokenizer=cli.model_name,
        answerer_model_name=cli.answerer_model_name,
        answerer_renderer_name=answerer,
        num_epochs=cli.num_epochs,
        base_url=cli.base_url,
    )
    # The dataset repeats itself already.
    await train.main(entry.to_rl_config(cli, builder, log_path, "twenty_questions", renderer_name=name, num_epochs=1))


if __name__ == "__main__":
    entry.run(cli_main)
