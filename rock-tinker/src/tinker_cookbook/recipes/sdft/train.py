"""Self-distillation: the model teaches itself after seeing the golden answer."""

from __future__ import annotations

import chz

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.distillation import sdft
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.sdft.datasets import PairProvider, load_pairs
from tinker_cookbook.recipes.settings import TrainingSettings
from tinker_cookbook.utils.config_fields import shared_values


@chz.chz
class CLIConfig(TrainingSettings):
    """``dataset``: sciknoweval, toolalpaca, example, or a JSONL file of conversations. ``skip_first_n_tokens`` of every
    answer are not trained; short answers need 0, since nothing else holds their beginning in place."""

    model_name: str = "Qwen/Qwen3-8B"
    lora_rank: int = 128
    dataset: str = "sciknoweval"
    sciknoweval_domain: str = "Chemistry"
    toolalpaca_data_path: str | None = None
    group_size: int = 1
    groups_per_batch: int = 32
    learning_rate: float = 2e-5
    max_tokens: int = 2048
    temperature: float = 1.0
    topk: int = 20
    reverse: bool = False
    teacher_sync_every: int | None = None
    max_context_length: int = 32768
    num_substeps: int = 1
    # Beyond the common set
    seed: int = 0
    skip_first_n_tokens: int = 3
    sampling_seed: int | None = None


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, f"sdft-{cli.dataset.split('/')[-1]}", f"top{cli.topk}", cli.learning_rate)
    renderer = renderers.get_renderer(name, tokenizer_utils.get_tokenizer(cli.model_name), model_name=cli.model_name)
    pairs = load_pairs(cli.dataset, cli.sciknoweval_domain, cli.toolalpaca_data_path)
    values = shared_values(cli, sdft.Config)
    values.update(log_path=log_path, renderer_name=name, recipe_name="sdft")
    provider = PairProvider(pairs, cli.groups_per_batch, cli.group_size, renderer, cli.seed)
    await sdft.main(sdft.Config(**values), provider)


if __name__ == "__main__":
    entry.run(cli_main)
