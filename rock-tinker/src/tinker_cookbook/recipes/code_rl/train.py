"""Reinforcement learning on programming problems."""

from __future__ import annotations

import chz

from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.code_rl.env import CodeDatasetBuilder
from tinker_cookbook.recipes.settings import RLSettings
from tinker_cookbook.rl import train
from tinker_cookbook.sandbox import SandboxBackend


@chz.chz
class CLIConfig(RLSettings):
    """``sandbox_backend``: sandboxfusion (``SANDBOX_URL``) or rock."""

    model_name: str = "Qwen/Qwen3.5-9B"
    seed: int = 0
    group_size: int = 4
    groups_per_batch: int = 100
    learning_rate: float = 1e-5
    max_tokens: int = 4096
    log_dir: str | None = None
    max_steps_off_policy: int | None = None
    sandbox_backend: SandboxBackend = SandboxBackend.SANDBOXFUSION
    rollout_max_retries: int | None = None
    # Beyond the common set
    dataset: str = "deepcoder"
    rock_base_url: str = "http://127.0.0.1:18080"
    rock_image: str = "local"


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    if cli.log_path is None and cli.log_dir is not None:
        cli = chz.replace(cli, log_path=cli.log_dir)
    log_path = entry.run_folder(cli, "code-rl", f"{cli.group_size}x{cli.groups_per_batch}", cli.learning_rate)
    builder = CodeDatasetBuilder(
        dataset=cli.dataset,
        batch_size=cli.groups_per_batch,
        group_size=cli.group_size,
        renderer_name=name,
        model_name_for_tokenizer=cli.model_name,
        sandbox_backend=cli.sandbox_backend,
        rock_base_url=cli.rock_base_url,
        rock_image=cli.rock_image,
        seed=cli.seed,
    )
    await train.main(entry.to_rl_config(cli, builder, log_path, "code_rl", renderer_name=name))


if __name__ == "__main__":
    entry.run(cli_main)
