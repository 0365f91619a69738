"""Datasets made of datasets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset


def cycle_permutation(size: int, seed: int, cycle: int) -> list[int]:
    """Order of the batches in an epoch; epoch 0 keeps the order."""
    if cycle == 0:
        return list(range(size))
    return [int(i) for i in np.random.default_rng([seed, cycle]).permutation(size)]


def epoch_batch_index(index: int, num_batches: int, shuffle_seed: int = 0) -> int:
    """Which batch of the dataset comes at a step that counts through all epochs."""
    cycle, offset = divmod(index, num_batches)
    return cycle_permutation(num_batches, shuffle_seed, cycle)[offset]


class EpochCycledRLDataset(RLDataset):
    """A dataset several times over, its batches in a new order in each epoch after the first."""

    def __init__(self, dataset: RLDataset, num_epochs: int, shuffle_seed: int = 0) -> None:
        self._dataset, self._num_epochs, self._seed = dataset, num_epochs, shuffle_seed

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self._dataset.get_batch(epoch_batch_index(index, len(self._dataset), self._seed))

    def __len__(self) -> int:
        return len(self._dataset) * self._num_epochs
