"""Reinforcement learning of search (after Search-R1), with an index in memory."""

from __future__ import annotations

import chz

from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.search_tool.env import SearchDatasetBuilder
from tinker_cookbook.recipes.settings import RLSettings
from tinker_cookbook.rl import train


@chz.chz
class CLIConfig(RLSettings):
    """``corpus_path`` and ``questions_path``: JSONL files; the defaults come with the package."""

    model_name: str = "Qwen/Qwen3.5-4B"
    renderer_name: str | None = "qwen3_5_disable_thinking"
    learning_rate: float = 4e-5
    batch_size: int = 512
    seed: int = 2
    max_tokens: int = 1024
    eval_every: int = 0
    group_size: int = 8
    max_turns: int = 5
    format_coef: float = 0.1
    max_trajectory_tokens: int = 32 * 1024
    n_results: int = 3
    stream_minibatch: bool = False
    num_minibatches: int = 4
    # Beyond the common set
    corpus_path: str = entry.example_data("search_corpus.jsonl")
    questions_path: str = entry.example_data("search_questions.jsonl")
    num_epochs: int = 1


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, "search", f"{cli.group_size}x{cli.batch_size}", cli.learning_rate)
    builder = SearchDatasetBuilder(
        questions_path=cli.questions_path,
        corpus_path=cli.corpus_path,
        batch_size=cli.batch_size,
        group_size=cli.group_size,
        renderer_name=name,
        model_name_for_tokenizer=cli.model_name,
        max_turns=cli.max_turns,
        format_coef=cli.format_coef,
        max_trajectory_tokens=cli.max_trajectory_tokens,
        n_results=cli.n_results,
        seed=cli.seed,
    )
    stream = (
        train.StreamMinibatchConfig(groups_per_batch=cli.batch_size, num_minibatches=cli.num_minibatches)
        if cli.stream_minibatch
        else None
    )
    config = entry.to_rl_config(
        cli, builder, log_path, "search_tool", renderer_name=name, stream_minibatch_config=stream
    )
    await train.main(config)


if __name__ == "__main__":
    entry.run(cli_main)
