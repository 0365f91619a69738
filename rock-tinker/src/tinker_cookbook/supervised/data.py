"""Datasets from conversations, files and Hugging Face datasets."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import chz
import numpy as np

import tinker
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError, DataValidationError
from tinker_cookbook.renderers import Message, Renderer, TrainOnWhat
from tinker_cookbook.supervised.common import Reduction, datum_from_model_input_weights
from tinker_cookbook.supervised.types import ChatDatasetBuilder, SupervisedDataset
from tinker_cookbook.utils.file_utils import read_jsonl

logger = logging.getLogger(__name__)


def conversation_to_datum(
    conversation: list[Message],
    renderer: Renderer,
    max_length: int | None,
    train_on_what: TrainOnWhat = TrainOnWhat.ALL_ASSISTANT_MESSAGES,
    reduction: Reduction = "mean",
) -> tinker.Datum:
    """One conversation as a datum for cross_entropy."""
    model_input, weights = renderer.build_supervised_example(conversation, train_on_what)
    return datum_from_model_input_weights(model_input, weights, max_length, reduction)


class SupervisedDatasetFromList(SupervisedDataset):
    """Rows in memory; shuffled per epoch, the last partial batch is dropped."""

    def __init__(
        self, rows: Sequence[Any], batch_size: int, to_data: Callable[[Any], list[tinker.Datum]], shuffle: bool = True
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"batch_size={batch_size} must be at least 1")
        if len(rows) < batch_size:
            raise ConfigurationError(f"batch_size={batch_size} is larger than the dataset ({len(rows)} rows)")
        self._rows, self._batch_size, self._to_data, self._shuffle = rows, batch_size, to_data, shuffle
        self._order = np.arange(len(rows))

    def __len__(self) -> int:
        return len(self._rows) // self._batch_size

    def set_epoch(self, seed: int = 0) -> None:
        if self._shuffle:
            self._order = np.random.default_rng(seed).permutation(len(self._rows))

    def get_batch(self, index: int) -> list[tinker.Datum]:
        chosen = self._order[index * self._batch_size : (index + 1) * self._batch_size]
        return [datum for row in chosen for datum in self._to_data(self._rows[int(row)])]


def _row_reader(
    map_fn: Callable[[dict[str, Any]], tinker.Datum] | None,
    flatmap_fn: Callable[[dict[str, Any]], list[tinker.Datum]] | None,
) -> Callable[[dict[str, Any]], list[tinker.Datum]]:
    if flatmap_fn is not None and map_fn is None:
        return flatmap_fn
    if map_fn is not None and flatmap_fn is None:
        return lambda row: [map_fn(row)]
    raise ConfigurationError("give map_fn or flatmap_fn")


class SupervisedDatasetFromHFDataset(SupervisedDataset):
    """A Hugging Face dataset. ``map_fn``: row to datum; ``flatmap_fn``: row to several."""

    def __init__(
        self,
        hf_dataset: Any,
        batch_size: int,
        map_fn: Callable[[dict[str, Any]], tinker.Datum] | None = None,
        flatmap_fn: Callable[[dict[str, Any]], list[tinker.Datum]] | None = None,
    ) -> None:
        self._inner = SupervisedDatasetFromList(hf_dataset, batch_size, _row_reader(map_fn, flatmap_fn))

    def __len__(self) -> int:
        return len(self._inner)

    def set_epoch(self, seed: int = 0) -> None:
        self._inner.set_epoch(seed)

    def get_batch(self, index: int) -> list[tinker.Datum]:
        return self._inner.get_batch(index)


class StreamingSupervisedDatasetFromHFDataset(SupervisedDataset):
    """A streamed dataset: only runs forward, ``length`` rows an epoch. ``map_fn``: row to datum; ``flatmap_fn``: row to
    several (a batch has the data of ``batch_size`` rows)."""

    def __init__(
        self,
        hf_dataset: Any,
        batch_size: int,
        length: int,
        map_fn: Callable[[dict[str, Any]], tinker.Datum] | None = None,
        flatmap_fn: Callable[[dict[str, Any]], list[tinker.Datum]] | None = None,
        buffer_size: int = 10_000,
    ) -> None:
        self._source, self._batch_size, self._length = hf_dataset, batch_size, length
        self._to_data, self._buffer_size = _row_reader(map_fn, flatmap_fn), buffer_size
        self._rows: Iterator[dict[str, Any]] = iter(())
        self._next = 0
        self.set_epoch(0)

    def __len__(self) -> int:
        return self._length // self._batch_size

    def set_epoch(self, seed: int = 0) -> None:
        self._rows = iter(self._source.shuffle(seed=seed, buffer_size=self._buffer_size))
        self._next = 0

    def get_batch(self, index: int) -> list[tinker.Datum]:
        if index < self._next:
            raise DataValidationError(f"batch {index} was read already: a streamed dataset only runs forward")
        for _ in range((index - self._next) * self._batch_size):
            next(self._rows)
        self._next = index + 1
        return [datum for _ in range(self._batch_size) for datum in self._to_data(next(self._rows))]


def conversation_from_row(row: dict[str, Any], field: str = "messages", where: str = "row") -> list[Message]:
    """Messages of a row.

    Raises:
        DataFormatError: the row has no list of messages with role and content.
    """
    messages = row.get(field)
    if not isinstance(messages, list) or not messages:
        raise DataFormatError(f"{where}: field {field!r} must be a non-empty list of messages; fields: {sorted(row)}")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or "role" not in message or "content" not in message:
            raise DataFormatError(
                f"{where}: message {index} needs the fields 'role' and 'content': {json.dumps(message)[:120]}"
            )
    return messages


@chz.chz
class FromConversationFileBuilder(ChatDatasetBuilder):
    """JSONL with a field ``messages`` per row. ``test_size`` rows are held out after shuffling with ``shuffle_seed``."""

    file_path: str
    test_size: int = 0
    shuffle_seed: int = 0

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        path = Path(self.file_path).expanduser()
        if not path.is_file():
            raise ConfigurationError(f"file_path={self.file_path!r} does not exist")
        rows = [
            conversation_from_row(row, where=f"{path}, row {index}")
            for index, row in enumerate(read_jsonl(path), start=1)
        ]
        order = np.random.default_rng(self.shuffle_seed).permutation(len(rows))
        shuffled = [rows[int(i)] for i in order]
        held_out, training = shuffled[: self.test_size], shuffled[self.test_size :]
        return chat_datasets(self, training, held_out)


def chat_datasets(
    builder: ChatDatasetBuilder, training: list[list[Message]], held_out: list[list[Message]]
) -> tuple[SupervisedDataset, SupervisedDataset | None]:
    """Datasets of conversations with the builder's configuration."""
    common, renderer = builder.common_config, builder.renderer
    mode = common.train_on_what or TrainOnWhat.ALL_ASSISTANT_MESSAGES

    def to_data(conversation: list[Message]) -> list[tinker.Datum]:
        return [conversation_to_datum(conversation, renderer, common.max_length, mode)]

    train = SupervisedDatasetFromList(training, common.batch_size, to_data)
    if not held_out:
        return train, None
    return train, SupervisedDatasetFromList(held_out, len(held_out), to_data, shuffle=False)


StoppingStrategy: TypeAlias = Literal["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"]
Rows: TypeAlias = list[list[Message]]


@chz.chz
class HFDatasetSource:
    """One dataset on the hub or in a local folder. ``weight``: its share of the rows; None in all sources: by their sizes. A
    source of weight 0 is left out."""

    path: str
    name: str | None = None
    split: str = "train"
    weight: float | None = None
    message_field: str = "messages"


@chz.chz
class InterleavedChatDatasetBuilder(ChatDatasetBuilder):
    """Several datasets of conversations, mixed by weight; ``test_size`` rows of all together are held out, at least one row of
    each source stays for training.

    ``stopping_strategy``: end with the first source that runs out; repeat sources until all are used up; or leave sources
    that are used up out until all are.
    """

    sources: list[HFDatasetSource]
    test_size: int = 0
    shuffle_seed: int = 0
    stopping_strategy: StoppingStrategy = "all_exhausted"

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        import datasets

        weights = _weights(self.sources)
        rng = np.random.default_rng(self.shuffle_seed)
        pools: list[Rows] = []
        shares: list[float] = []
        for source, weight in zip(self.sources, weights or [1.0] * len(self.sources), strict=True):
            loaded: Any = datasets.load_dataset(source.path, name=source.name, split=source.split)
            rows = [conversation_from_row(row, source.message_field, source.path) for row in loaded] if weight else []
            if weight and weights is not None and not rows:
                raise ConfigurationError(f"source {source.path!r} has no rows; give it weight 0 to leave it out")
            if rows:
                pools.append([rows[int(i)] for i in rng.permutation(len(rows))])
                shares.append(weight)
        if not pools:
            raise ConfigurationError("the sources have no rows")
        explicit = weights is not None
        held_out = _hold_out(pools, shares if explicit else None, self.test_size, rng)
        counts = shares if explicit else [float(len(pool)) for pool in pools]
        return chat_datasets(self, _interleave(pools, np.asarray(counts), self.stopping_strategy, rng), held_out)


def _weights(sources: list[HFDatasetSource]) -> list[float] | None:
    """Weights of the sources; None: by size."""
    if not sources:
        raise ConfigurationError("sources must name at least one dataset")
    given = [source.weight for source in sources if source.weight is not None]
    if not given:
        return None
    if len(given) < len(sources):
        raise ConfigurationError("give a weight to every source, or to none")
    if any(weight < 0 or not math.isfinite(weight) for weight in given) or not any(given):
        raise ConfigurationError(f"weights={given} must be finite, not negative, and not all 0")
    return given


def _hold_out(pools: list[Rows], shares: list[float] | None, count: int, rng: np.random.Generator) -> Rows:
    """Take rows out of the pools, by weight or by the number of rows that are left."""
    if count > sum(len(pool) - 1 for pool in pools):
        sizes = [len(pool) for pool in pools]
        raise ConfigurationError(f"test_size={count} leaves no training row of some source; sources have {sizes} rows")
    held_out: Rows = []
    for _ in range(count):
        chances = np.asarray(
            [(len(pool) if shares is None else shares[i]) * (len(pool) > 1) for i, pool in enumerate(pools)],
            dtype=float,
        )
        held_out.append(pools[int(rng.choice(len(pools), p=chances / chances.sum()))].pop())
    return held_out


def _interleave(pools: list[Rows], shares: np.ndarray, stop: StoppingStrategy, rng: np.random.Generator) -> Rows:
    positions = [0] * len(pools)
    mixed: Rows = []
    while True:
        used_up = [position >= len(pool) for position, pool in zip(positions, pools, strict=True)]
        if any(used_up) if stop == "first_exhausted" else all(used_up):
            return mixed
        chances = shares * ~np.asarray(used_up) if stop == "all_exhausted_without_replacement" else shares
        chosen = int(rng.choice(len(pools), p=chances / chances.sum()))
        mixed.append(pools[chosen][positions[chosen] % len(pools[chosen])])
        positions[chosen] += 1
