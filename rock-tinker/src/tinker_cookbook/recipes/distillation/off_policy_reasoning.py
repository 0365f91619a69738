"""Fine-tuning on reasoning that a teacher wrote (OpenThoughts 3), read as a stream."""

from __future__ import annotations

from typing import Any

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.settings import TrainingSettings
from tinker_cookbook.renderers import Message, TrainOnWhat
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.data import (
    FromConversationFileBuilder,
    StreamingSupervisedDatasetFromHFDataset,
    conversation_to_datum,
)
from tinker_cookbook.supervised.types import (
    ChatDatasetBuilder,
    ChatDatasetBuilderCommonConfig,
    SupervisedDataset,
)
from tinker_cookbook.utils.lr_scheduling import LRSchedule

_ROLES = {"human": "user", "gpt": "assistant", "system": "system"}


@chz.chz
class OpenThoughtsBuilder(ChatDatasetBuilder):
    """The first ``max_prompts`` rows of OpenThoughts 3, shuffled within ``buffer_size`` rows."""

    buffer_size: int
    max_prompts: int

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        import datasets

        path = "open-thoughts/OpenThoughts3-1.2M"
        try:
            stream: Any = datasets.load_dataset(path, split="train", streaming=True)
        except Exception as error:
            raise ConfigurationError(f"dataset {path!r} cannot be read ({error}); give dataset=<file>.jsonl") from error
        renderer, common = self.renderer, self.common_config

        def to_datum(row: dict[str, Any]) -> Any:
            turns = [Message(role=_ROLES[turn["from"]], content=turn["value"]) for turn in row["conversations"]]
            return conversation_to_datum(turns, renderer, common.max_length, TrainOnWhat.LAST_ASSISTANT_MESSAGE)

        dataset = StreamingSupervisedDatasetFromHFDataset(
            stream, common.batch_size, self.max_prompts, to_datum, buffer_size=self.buffer_size
        )
        return dataset, None


@chz.chz
class CLIConfig(TrainingSettings):
    """``dataset``: openthoughts3, or a JSONL file of conversations ("example" comes with the package)."""

    model_name: str = "Qwen/Qwen3.5-9B-Base"
    lora_rank: int = 128
    renderer_name: str | None = "qwen3_5"
    batch_size: int = 128
    learning_rate: float = 1e-3
    lr_schedule: LRSchedule = "linear"
    num_epochs: int = 1
    max_length: int = 16384
    buffer_size: int = 128 * 3000
    max_prompts: int = 128 * 3000
    eval_every: int = 50
    save_every: int = 50
    # Beyond the common set
    dataset: str = "openthoughts3"
    seed: int | None = None


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, "off-policy-reasoning", cli.learning_rate)
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=cli.model_name,
        renderer_name=name,
        max_length=cli.max_length,
        batch_size=cli.batch_size,
    )
    builder: ChatDatasetBuilder
    if cli.dataset == "openthoughts3":
        builder = OpenThoughtsBuilder(common_config=common, buffer_size=cli.buffer_size, max_prompts=cli.max_prompts)
    else:
        path = entry.example_data("conversations.jsonl") if cli.dataset == "example" else cli.dataset
        builder = FromConversationFileBuilder(common_config=common, file_path=path)
    await train.main(entry.to_supervised_config(cli, builder, log_path, "off_policy_reasoning", renderer_name=name))


if __name__ == "__main__":
    entry.run(cli_main)
