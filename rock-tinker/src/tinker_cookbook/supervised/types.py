"""Datasets of supervised learning."""

from __future__ import annotations

import functools

import chz

import tinker
from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.renderers import TrainOnWhat


class SupervisedDataset:
    """Batches of data."""

    def get_batch(self, index: int) -> list[tinker.Datum]:
        """Data of a batch; the same for the same index within an epoch."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Number of batches of an epoch."""
        raise NotImplementedError

    def set_epoch(self, seed: int = 0) -> None:
        """Begin an epoch; datasets that can be shuffled are, with this seed."""
        return None


@chz.chz
class SupervisedDatasetBuilder:
    """Configuration from which a dataset is made."""

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """Training data and held-out data."""
        raise NotImplementedError


@chz.chz
class ChatDatasetBuilderCommonConfig:
    """How conversations become data. ``max_length``: longer ones are cut at their end."""

    model_name_for_tokenizer: str
    renderer_name: str
    max_length: int | None
    batch_size: int
    train_on_what: TrainOnWhat | None = None


@chz.chz
class ChatDatasetBuilder(SupervisedDatasetBuilder):
    """Builder of datasets of conversations."""

    common_config: ChatDatasetBuilderCommonConfig

    @property
    def tokenizer(self) -> tokenizer_utils.Tokenizer:
        """Tokenizer of the model."""
        return tokenizer_utils.get_tokenizer(self.common_config.model_name_for_tokenizer)

    @property
    def renderer(self) -> renderers.Renderer:
        """Renderer of the configuration."""
        return _renderer(self.common_config.renderer_name, self.common_config.model_name_for_tokenizer)


@functools.lru_cache(maxsize=8)
def _renderer(renderer_name: str, model_name: str) -> renderers.Renderer:
    return renderers.get_renderer(renderer_name, tokenizer_utils.get_tokenizer(model_name), model_name=model_name)
