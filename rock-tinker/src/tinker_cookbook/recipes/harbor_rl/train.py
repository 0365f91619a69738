"""Reinforcement learning of terminal agents on Harbor tasks in ROCK sandboxes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import chz

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.harbor_rl.harbor_env import (
    HarborDataset,
    HarborGroupBuilder,
    HarborTask,
    SandboxFactory,
    load_tasks,
)
from tinker_cookbook.recipes.settings import RLSettings
from tinker_cookbook.rl import train
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
from tinker_cookbook.sandbox import RockSandbox, SandboxInterface


@chz.chz
class CLIConfig(RLSettings):
    """``tasks_dir``: folder of Harbor tasks. Sandboxes come from ROCK admin at ``rock_base_url``."""

    model_name: str = "moonshotai/Kimi-K2.6"
    max_tokens: int = 8192
    max_turns: int = 10
    sandbox_timeout: int = 3600
    command_timeout: int = 120
    grader_timeout: int = 60
    max_trajectory_tokens: int = 32 * 1024
    max_generation_tokens: int | None = None
    context_overflow_reward: float = -0.1
    group_size: int = 4
    groups_per_batch: int = 8
    learning_rate: float = 1e-5
    eval_every: int = 5
    save_every: int = 5
    max_steps_off_policy: int | None = None
    # Beyond the common set
    tasks_dir: str = "~/.cache/harbor/tasks"
    max_tasks: int | None = None
    rock_base_url: str = "http://127.0.0.1:18080"
    rock_image: str = "local"


@chz.chz
class _HarborDatasetBuilder(RLDatasetBuilder):
    make: object

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        return self.make(), None  # type: ignore[operator]


async def cli_main(
    cli: CLIConfig, tasks: list[HarborTask] | None = None, sandbox_factory: SandboxFactory | None = None
) -> None:
    """Run the recipe; tasks and sandboxes may be given by a caller."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, "harbor-rl", f"{cli.group_size}x{cli.groups_per_batch}", cli.learning_rate)
    chosen = tasks if tasks is not None else load_tasks(cli.tasks_dir, cli.max_tasks)
    renderer = renderers.get_renderer(name, tokenizer_utils.get_tokenizer(cli.model_name), model_name=cli.model_name)

    async def rock(_: Path, timeout: int) -> SandboxInterface:
        return await RockSandbox.create(cli.rock_base_url, cli.rock_image, timeout)

    def make() -> HarborDataset:
        limits = {
            key: getattr(cli, key)
            for key in (
                "max_turns",
                "sandbox_timeout",
                "command_timeout",
                "grader_timeout",
                "max_trajectory_tokens",
                "max_generation_tokens",
                "context_overflow_reward",
            )
        }
        factory = sandbox_factory or rock
        builders = [partial(HarborGroupBuilder, task, renderer, factory, cli.group_size, **limits) for task in chosen]
        return HarborDataset(builders, cli.groups_per_batch)

    builder = _HarborDatasetBuilder(make=make)
    await train.main(entry.to_rl_config(cli, builder, log_path, "harbor_rl", renderer_name=name))


async def main(cli: CLIConfig) -> None:
    """Run the recipe from a command line."""
    await cli_main(cli)


if __name__ == "__main__":
    entry.run(main)
