"""Direct preference optimisation."""

from __future__ import annotations

import chz

from tinker_cookbook.preference import train_dpo
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.preference.datasets import comparison_builder
from tinker_cookbook.recipes.settings import TrainingSettings
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig
from tinker_cookbook.utils.config_fields import shared_values
from tinker_cookbook.utils.lr_scheduling import LRSchedule


@chz.chz
class CLIConfig(TrainingSettings):
    """``dataset``: hhh, helpsteer3, ultrafeedback, example, or a JSONL file of comparisons."""

    model_name: str = "Qwen/Qwen3.5-9B-Base"
    dataset: str = "hhh"
    learning_rate: float = 1e-5
    lr_schedule: LRSchedule = "linear"
    dpo_beta: float = 0.1
    max_length: int | None = 8192
    batch_size: int = 256
    reference_model_name: str | None = None
    # Beyond the common set
    num_epochs: int = 1
    eval_every: int = 10
    seed: int | None = None


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    dataset = cli.dataset.split("/")[-1].removesuffix(".jsonl")
    log_path = entry.run_folder(cli, f"dpo-{dataset}", cli.learning_rate)
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=cli.model_name,
        renderer_name=name,
        max_length=cli.max_length,
        batch_size=cli.batch_size,
    )
    builder = DPODatasetBuilderFromComparisons(common_config=common, comparison_builder=comparison_builder(cli.dataset))
    values = shared_values(cli, train_dpo.Config)
    values.update(log_path=log_path, renderer_name=name, recipe_name="dpo", dataset_builder=builder)
    await train_dpo.amain(train_dpo.Config(**values))


if __name__ == "__main__":
    entry.run(cli_main)
