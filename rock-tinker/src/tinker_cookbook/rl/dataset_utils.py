"""Datasets made of datasets."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset


def cycle_permutation(size: int, seed: int, cycle: int) -> list[int]:
    """A random order of the batches that follows from the seed and the epoch."""
    order = list(range(size))
    random.Random(f"{seed}:{cycle}").shuffle(order)
    return order


def epoch_batch_index(index: int, num_batches: int, shuffle_seed: int | None = None) -> int:
    """Which batch of the dataset comes at a step that counts through all epochs; without a seed, always in order."""
    cycle, offset = divmod(index, num_batches)
    if shuffle_seed is None:
        return offset
    return cycle_permutation(num_batches, shuffle_seed, cycle)[offset]


class EpochCycledRLDataset(RLDataset):
    """A dataset several times over; with ``shuffle_seed``, its batches come in an order of their own in each epoch."""

    def __init__(self, inner: RLDataset, num_epochs: int, shuffle_seed: int | None = None) -> None:
        if num_epochs < 1:
            raise ConfigurationError(f"num_epochs={num_epochs} must be at least 1")
        self._dataset, self._num_epochs, self._seed = inner, num_epochs, shuffle_seed

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self._dataset.get_batch(epoch_batch_index(index, len(self._dataset), self._seed))

    def __len__(self) -> int:
        return len(self._dataset) * self._num_epochs
