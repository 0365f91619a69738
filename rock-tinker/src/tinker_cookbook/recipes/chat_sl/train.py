"""Supervised fine-tuning on conversations."""

from __future__ import annotations

import chz

from tinker_cookbook.eval.evaluators import EvaluatorBuilder
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.chat_sl.chat_datasets import NoRobotsBuilder, Tulu3Builder
from tinker_cookbook.recipes.settings import TrainingSettings
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilder, ChatDatasetBuilderCommonConfig
from tinker_cookbook.utils.lr_scheduling import LRSchedule


@chz.chz
class CLIConfig(TrainingSettings):
    """``dataset``: no_robots, tulu3, "example" (comes with the package) or the path of a JSONL file with messages.

    ``inline_evals``: a benchmark to run at every evaluation (see ``tinker_cookbook.eval.benchmarks``).
    """

    model_name: str = "Qwen/Qwen3.5-9B-Base"
    dataset: str = "no_robots"
    learning_rate: float = 1e-4
    lr_schedule: LRSchedule = "linear"
    num_epochs: int = 1
    infrequent_eval_every: int = 100
    inline_evals: str | None = None
    train_on_what: TrainOnWhat | None = None
    max_length: int | None = 16384
    batch_size: int = 256
    rolling_save_every: int = 0
    rolling_ttl_seconds: int = 7200
    # Beyond the common set
    test_size: int = 16
    seed: int | None = None


def get_dataset_builder(cli: CLIConfig, renderer_name: str) -> ChatDatasetBuilder:
    """The dataset by name."""
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=cli.model_name,
        renderer_name=renderer_name,
        max_length=cli.max_length,
        batch_size=cli.batch_size,
        train_on_what=cli.train_on_what,
    )
    if cli.dataset == "no_robots":
        return NoRobotsBuilder(common_config=common)
    if cli.dataset == "tulu3":
        return Tulu3Builder(common_config=common)
    path = entry.example_data("conversations.jsonl") if cli.dataset == "example" else cli.dataset
    if not path.endswith(".jsonl"):
        raise ConfigurationError(
            f"dataset={cli.dataset!r} is unknown; use no_robots, tulu3, example or a path that ends in .jsonl"
        )
    return FromConversationFileBuilder(common_config=common, file_path=path, test_size=cli.test_size)


def get_infrequent_evaluator_builders(cli: CLIConfig, renderer_name: str) -> list[EvaluatorBuilder]:
    """The benchmark asked for with ``inline_evals``."""
    if cli.inline_evals is None:
        return []
    from tinker_cookbook import renderers, tokenizer_utils
    from tinker_cookbook.eval.benchmark_evaluator import BenchmarkEvaluator

    benchmark = cli.inline_evals
    renderer = renderers.get_renderer(renderer_name, tokenizer_utils.get_tokenizer(cli.model_name))
    return [lambda: BenchmarkEvaluator(benchmark, renderer)]


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    dataset = cli.dataset.split("/")[-1].removesuffix(".jsonl")
    log_path = entry.run_folder(cli, f"chat-sl-{dataset}", cli.learning_rate)
    config = entry.to_supervised_config(
        cli,
        get_dataset_builder(cli, name),
        log_path,
        "chat_sl",
        renderer_name=name,
        infrequent_evaluator_builders=get_infrequent_evaluator_builders(cli, name),
    )
    await train.main(config)


if __name__ == "__main__":
    entry.run(cli_main)
