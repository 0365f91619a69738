"""Reinforcement learning with a model as the grader."""

from __future__ import annotations

import chz

from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.rubric.env import RubricDatasetBuilder
from tinker_cookbook.recipes.settings import RLSettings
from tinker_cookbook.rl import train


@chz.chz
class CLIConfig(RLSettings):
    """Data files come from ``recipes.rubric.generate_data``."""

    model_name: str = "Qwen/Qwen3.5-9B"
    renderer_name: str | None = "qwen3_5_disable_thinking"
    seed: int = 0
    train_group_size: int = 4
    test_group_size: int = 1
    groups_per_batch: int = 100
    learning_rate: float = 1e-5
    max_tokens: int = 32
    grader_llm_name: str = "Qwen/Qwen3.6-35B-A3B"
    grader_renderer_name: str = "qwen3_5_disable_thinking"
    train_jsonl_path: str = entry.example_data("example_rubric_train.jsonl")
    test_jsonl_path: str | None = entry.example_data("example_rubric_test.jsonl")
    max_steps_off_policy: int | None = None


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, "rubric", f"{cli.train_group_size}x{cli.groups_per_batch}", cli.learning_rate)
    builder = RubricDatasetBuilder(
        train_jsonl_path=cli.train_jsonl_path,
        test_jsonl_path=cli.test_jsonl_path,
        groups_per_batch=cli.groups_per_batch,
        train_group_size=cli.train_group_size,
        test_group_size=cli.test_group_size,
        renderer_name=name,
        model_name_for_tokenizer=cli.model_name,
        grader_llm_name=cli.grader_llm_name,
        grader_renderer_name=cli.grader_renderer_name,
        base_url=cli.base_url,
    )
    await train.main(entry.to_rl_config(cli, builder, log_path, "rubric", renderer_name=name))


if __name__ == "__main__":
    entry.run(cli_main)
