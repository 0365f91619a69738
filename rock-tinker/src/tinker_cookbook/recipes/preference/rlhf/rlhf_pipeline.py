"""Learning from human feedback in three stages: imitation, a model of preferences, reinforcement against it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import chz

from tinker_cookbook import checkpoint_utils, cli_utils, model_info
from tinker_cookbook.exceptions import CheckpointError
from tinker_cookbook.preference.comparison_policy_evaluator import ComparisonEvaluator
from tinker_cookbook.preference.preference_datasets import ChatDatasetBuilderFromComparisons
from tinker_cookbook.preference.types import PreferenceModelBuilderFromChatRenderer
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.chat_sl import train as chat_sl
from tinker_cookbook.recipes.preference.datasets import comparison_builder
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.rl.preference_envs import PairwisePreferenceRLDatasetBuilder
from tinker_cookbook.supervised import train as supervised_train
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig, SupervisedDatasetBuilder

logger = logging.getLogger(__name__)


@chz.chz
class CLIConfig:
    """``sft_dataset`` and ``comparisons`` take the names of chat_sl and dpo ("example": comes with the package).

    ``policy_renderer_name``: None means the recommended one of the base model.
    """

    base_model: str = "Qwen/Qwen3.5-9B-Base"
    short_name: str = "qwen3_5_9b_base"
    run_sft: bool = True
    run_rm: bool = True
    run_rl: bool = True
    wandb_project: str | None = None
    wandb_name: str | None = None
    session_name: str | None = None
    lora_rank: int = 64
    max_length: int = 16384
    batch_size: int = 256
    sft_learning_rate: float = 2e-4
    rm_learning_rate: float = 3e-4
    rl_learning_rate: float = 1e-5
    rl_max_tokens: int = 1024
    rl_group_size: int = 4
    save_every: int = 100
    eval_every: int = 20
    num_groups_to_log: int = 4
    max_steps: int | None = None
    # Beyond the common set
    base_url: str | None = None
    log_path: str | None = None
    sft_dataset: str = "no_robots"
    comparisons: str = "hhh"
    renderer_name: str | None = None
    rl_batch_size: int | None = None
    eval_comparisons: int = 256


def _folder(cli: CLIConfig, stage: str) -> str:
    root = cli.log_path or cli_utils.runs_path(f"rlhf-{cli.short_name}")
    return f"{root}/{stage}"


def _last(cli: CLIConfig, stage: str, key: str) -> str:
    record = checkpoint_utils.get_last_checkpoint(_folder(cli, stage), key)
    if record is None:
        raise CheckpointError(f"stage {stage} has no {key} in {_folder(cli, stage)}; run it first (run_{stage}=true)")
    return str(record.get(key))


def _renderer_name(cli: CLIConfig) -> str:
    return cli.renderer_name or model_info.get_recommended_renderer_name(cli.base_model)


def _common(cli: CLIConfig) -> ChatDatasetBuilderCommonConfig:
    return ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=cli.base_model,
        renderer_name=_renderer_name(cli),
        max_length=cli.max_length,
        batch_size=cli.batch_size,
    )


async def _supervised_stage(
    cli: CLIConfig, stage: str, builder: SupervisedDatasetBuilder, learning_rate: float
) -> None:
    config = entry.to_supervised_config(
        cli,
        builder,
        _folder(cli, stage),
        f"rlhf-{stage}",
        model_name=cli.base_model,
        learning_rate=learning_rate,
        renderer_name=_renderer_name(cli),
    )
    await supervised_train.main(config)


async def sft_stage(cli: CLIConfig) -> None:
    """Imitation of conversations."""
    chat = chat_sl.CLIConfig(
        model_name=cli.base_model, dataset=cli.sft_dataset, batch_size=cli.batch_size, max_length=cli.max_length
    )
    builder = chat_sl.get_dataset_builder(chat, _renderer_name(cli))
    await _supervised_stage(cli, "sft", builder, cli.sft_learning_rate)


async def rm_stage(cli: CLIConfig) -> None:
    """A policy that names the better of two completions."""
    builder = ChatDatasetBuilderFromComparisons(
        common_config=_common(cli), comparison_builder=comparison_builder(cli.comparisons)
    )
    await _supervised_stage(cli, "rm", builder, cli.rm_learning_rate)


async def rl_stage(cli: CLIConfig) -> None:
    """Reinforcement of the imitating policy in tournaments judged by the second stage."""
    name = _renderer_name(cli)
    preference = PreferenceModelBuilderFromChatRenderer(
        renderer_name=name,
        model_name=cli.base_model,
        rm_weights_path=_last(cli, "rm", "sampler_path"),
        base_url=cli.base_url,
    )
    comparisons = comparison_builder(cli.comparisons)
    builder = PairwisePreferenceRLDatasetBuilder(
        comparison_builder=comparisons,
        batch_size=cli.rl_batch_size or cli.batch_size,
        policy_renderer_name=name,
        policy_model_name=cli.base_model,
        group_size=cli.rl_group_size,
        preference_model_builder=preference,
    )
    train, test = comparisons.get_labeled_comparisons()
    held_out = [labeled.comparison for labeled in (test or train)[: cli.eval_comparisons]]

    # The preference model is opened with calls that wait: not in the event loop.
    win_rate = await asyncio.to_thread(
        ComparisonEvaluator, preference, held_out, name, cli.base_model, max_tokens=cli.rl_max_tokens
    )

    config = rl_train.Config(
        learning_rate=cli.rl_learning_rate,
        dataset_builder=builder,
        model_name=cli.base_model,
        max_tokens=cli.rl_max_tokens,
        log_path=_folder(cli, "rl"),
        recipe_name="rlhf-rl",
        renderer_name=name,
        evaluator_builders=[lambda: win_rate],
        load_checkpoint_path=_last(cli, "sft", "state_path"),
        lora_rank=cli.lora_rank,
        save_every=cli.save_every,
        eval_every=cli.eval_every,
        num_groups_to_log=cli.num_groups_to_log,
        max_steps=cli.max_steps,
        base_url=cli.base_url,
        wandb_project=cli.wandb_project,
        wandb_name=cli.wandb_name,
        session_name=cli.session_name,
    )
    await rl_train.main(config)


async def cli_main(cli: CLIConfig) -> None:
    """Run the stages asked for, in order."""
    entry.remember_folder(str(Path(_folder(cli, "rl")).parent))
    for wanted, name, stage in (
        (cli.run_sft, "sft", sft_stage),
        (cli.run_rm, "rm", rm_stage),
        (cli.run_rl, "rl", rl_stage),
    ):
        if wanted:
            logger.info("stage %s", name)
            await stage(cli)
            await asyncio.sleep(0)


if __name__ == "__main__":
    entry.run(cli_main)
