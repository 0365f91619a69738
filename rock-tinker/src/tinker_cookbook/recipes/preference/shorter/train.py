"""The shorter answer wins: pairwise preference without any data."""

from __future__ import annotations

import chz

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.preference.shorter.env import PROMPTS, PreferenceModelShorter, ShorterComparisonBuilder
from tinker_cookbook.recipes.settings import RLSettings
from tinker_cookbook.rl import train
from tinker_cookbook.rl.preference_envs import PairwisePreferenceDataset
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder


@chz.chz
class ShorterDatasetBuilder(RLDatasetBuilder):
    """The prompts in turn; held out is every prompt once."""

    batch_size: int
    group_size: int
    renderer_name: str
    model_name_for_tokenizer: str
    num_batches: int = 50

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name_for_tokenizer)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)

        def dataset(batch_size: int, num_batches: int) -> RLDataset:
            comparisons = ShorterComparisonBuilder(num_comparisons=batch_size * num_batches)
            model = PreferenceModelShorter()
            return PairwisePreferenceDataset(comparisons, renderer, batch_size, model, group_size=self.group_size)

        return dataset(self.batch_size, self.num_batches), dataset(len(PROMPTS), 1)


@chz.chz
class CLIConfig(RLSettings):
    """Settings of the recipe."""

    model_name: str = "Qwen/Qwen3.5-4B"
    renderer_name: str | None = "qwen3_5_disable_thinking"
    batch_size: int = 32
    group_size: int = 16
    learning_rate: float = 3e-5
    max_tokens: int = 64
    eval_every: int = 5
    # Beyond the common set
    compute_post_kl: bool = True


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, "shorter", f"{cli.group_size}x{cli.batch_size}", cli.learning_rate)
    builder = ShorterDatasetBuilder(
        batch_size=cli.batch_size,
        group_size=cli.group_size,
        renderer_name=name,
        model_name_for_tokenizer=cli.model_name,
        num_batches=max(50, cli.max_steps or 0),
    )
    await train.main(entry.to_rl_config(cli, builder, log_path, "shorter", renderer_name=name))


if __name__ == "__main__":
    entry.run(cli_main)
