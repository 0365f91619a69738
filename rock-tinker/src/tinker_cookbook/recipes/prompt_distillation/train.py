"""Learn to answer as if under the long prompt."""

from __future__ import annotations

from pathlib import Path

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry
from tinker_cookbook.recipes.prompt_distillation.create_data import DEFAULT_OUTPUT_FILE
from tinker_cookbook.recipes.settings import TrainingSettings
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig
from tinker_cookbook.utils.lr_scheduling import LRSchedule


@chz.chz
class CLIConfig(TrainingSettings):
    """``file_path``: what create_data wrote."""

    file_path: str = DEFAULT_OUTPUT_FILE
    model_name: str = "Qwen/Qwen3.6-35B-A3B"
    learning_rate: float = 1e-4
    lr_schedule: LRSchedule = "linear"
    num_epochs: int = 4
    eval_every: int = 5
    train_on_what: TrainOnWhat = TrainOnWhat.ALL_ASSISTANT_MESSAGES
    max_length: int = 32768
    batch_size: int = 128
    # Beyond the common set
    test_size: int = 0
    seed: int | None = None


async def cli_main(cli: CLIConfig) -> None:
    """Run the recipe."""
    if not Path(cli.file_path).expanduser().is_file():
        raise ConfigurationError(
            f"file_path={cli.file_path!r} does not exist; recipe prompt_distillation.create_data writes it"
        )
    name = await entry.renderer_name(cli)
    log_path = entry.run_folder(cli, "prompt-distillation", cli.learning_rate)
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=cli.model_name,
        renderer_name=name,
        max_length=cli.max_length,
        batch_size=cli.batch_size,
        train_on_what=cli.train_on_what,
    )
    builder = FromConversationFileBuilder(common_config=common, file_path=cli.file_path, test_size=cli.test_size)
    await train.main(entry.to_supervised_config(cli, builder, log_path, "prompt_distillation", renderer_name=name))


if __name__ == "__main__":
    entry.run(cli_main)
