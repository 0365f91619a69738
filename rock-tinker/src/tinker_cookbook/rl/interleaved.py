"""Several RL datasets in one, mixed by weight."""

from __future__ import annotations

from collections.abc import Sequence

import chz
import numpy as np

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder


class InterleavedRLDataset(RLDataset):
    """Each group of a batch comes from a source drawn by weight; the same for the same batch number.

    A source that is used up begins again.
    """

    def __init__(
        self, datasets: list[RLDataset], weights: list[float], groups_per_batch: int, total_batches: int, seed: int
    ) -> None:
        self._datasets, self._total, self._groups = datasets, total_batches, groups_per_batch
        probabilities = np.asarray(weights) / sum(weights)
        rng = np.random.default_rng(seed)
        choices = rng.choice(len(datasets), size=(total_batches, groups_per_batch), p=probabilities)
        counts = [0] * len(datasets)
        self._plan: list[list[tuple[int, int]]] = []
        for row in choices:
            batch = []
            for source in row:
                batch.append((int(source), counts[source]))
                counts[source] += 1
            self._plan.append(batch)

    def _group(self, source: int, number: int) -> EnvGroupBuilder:
        dataset = self._datasets[source]
        size = len(dataset.get_batch(0))
        batch, offset = divmod(number, size)
        groups = dataset.get_batch(batch % len(dataset))
        return groups[offset % len(groups)]

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [self._group(source, number) for source, number in self._plan[index]]

    def __len__(self) -> int:
        return self._total


@chz.chz
class InterleavedRLDatasetBuilder(RLDatasetBuilder):
    """Sources and their weights. The held-out data are those of the first source that has any."""

    sources: list[RLDatasetBuilder]
    weights: list[float]
    groups_per_batch: int
    total_batches: int
    seed: int = 0

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        if len(self.sources) != len(self.weights) or not self.sources or min(self.weights) <= 0:
            raise ConfigurationError(f"{len(self.sources)} sources need as many weights above 0, got {self.weights}")
        built = [await source() for source in self.sources]
        tests = [test for _, test in built if test is not None]
        dataset = InterleavedRLDataset(
            [train for train, _ in built], self.weights, self.groups_per_batch, self.total_batches, self.seed
        )
        return dataset, tests[0] if tests else None
