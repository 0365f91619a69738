"""Reinforcement learning on GSM8K with a fixed plan; every top-level setting of ``rl.train.Config`` can be changed.

python -m tinker_cookbook.recipes.rl_basic model_name=... max_steps=20
"""

from __future__ import annotations

import asyncio

import chz

from tinker_cookbook import cli_utils, model_info
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.math_rl.math_env import MathDatasetBuilder
from tinker_cookbook.rl import train


def build_config_blueprint(model_name: str | None = None) -> chz.Blueprint[train.Config]:
    """The plan."""
    name = model_name or cli_utils.model_name_from_argv(default="Qwen/Qwen3.5-9B-Base")
    renderer = cli_utils.setting_from_argv("renderer_name") or model_info.get_recommended_renderer_name(name)
    builder = MathDatasetBuilder(
        dataset="gsm8k", batch_size=128, group_size=16, renderer_name=renderer, model_name_for_tokenizer=name
    )
    return chz.Blueprint(train.Config).apply(
        {
            "log_path": cli_utils.runs_path("rl-basic"),
            "model_name": name,
            "recipe_name": "rl_basic",
            "renderer_name": renderer,
            "dataset_builder": builder,
            "learning_rate": 4e-5,
            "max_tokens": 256,
            "eval_every": 0,
        }
    )


def main(config: train.Config) -> None:
    """Run the recipe."""
    cli_utils.check_log_dir(config.log_path, "ask")
    asyncio.run(train.main(config))


if __name__ == "__main__":
    entry.run_plan(main, build_config_blueprint)
