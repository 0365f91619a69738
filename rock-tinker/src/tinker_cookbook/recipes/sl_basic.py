"""Supervised fine-tuning with a fixed plan; every top-level setting of ``supervised.train.Config`` can be changed.

python -m tinker_cookbook.recipes.sl_basic model_name=... learning_rate=1e-4 max_steps=20
"""

from __future__ import annotations

import asyncio

import chz

from tinker_cookbook import cli_utils, model_info
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.chat_sl.chat_datasets import NoRobotsBuilder
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


def build_config_blueprint(model_name: str | None = None) -> chz.Blueprint[train.Config]:
    """The plan."""
    name = model_name or cli_utils.model_name_from_argv(default="Qwen/Qwen3.5-9B-Base")
    renderer = cli_utils.setting_from_argv("renderer_name") or model_info.get_recommended_renderer_name(name)
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=name,
        renderer_name=renderer,
        max_length=32768,
        batch_size=128,
        train_on_what=TrainOnWhat.ALL_ASSISTANT_MESSAGES,
    )
    return chz.Blueprint(train.Config).apply(
        {
            "log_path": cli_utils.runs_path("sl-basic"),
            "model_name": name,
            "recipe_name": "sl_basic",
            "renderer_name": renderer,
            "dataset_builder": NoRobotsBuilder(common_config=common),
            "learning_rate": 2e-4,
            "lr_schedule": "linear",
            "num_epochs": 1,
            "eval_every": 8,
        }
    )


def main(config: train.Config) -> None:
    """Run the recipe."""
    cli_utils.check_log_dir(config.log_path, "ask")
    asyncio.run(train.main(config))


if __name__ == "__main__":
    entry.run_plan(main, build_config_blueprint)
