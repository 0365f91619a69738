"""Several RL datasets in one, mixed by weight."""

from __future__ import annotations

from collections.abc import Sequence

import chz
import numpy as np

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.dataset_utils import cycle_permutation
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder


class InterleavedRLDataset(RLDataset):
    """Each group of a batch comes from a source drawn by weight; the same for the same batch number.

    A source that is used up begins again; its groups come in a random order of each pass.
    """

    def __init__(
        self, datasets: list[RLDataset], weights: list[float], groups_per_batch: int, total_batches: int, seed: int
    ) -> None:
        self._datasets, self._total, self._groups = datasets, total_batches, groups_per_batch
        self._seeds = [seed * len(datasets) + index for index in range(len(datasets))]
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
        cycle, position = divmod(number, size * len(dataset))
        batch, offset = divmod(cycle_permutation(size * len(dataset), self._seeds[source], cycle)[position], size)
        groups = dataset.get_batch(batch)
        return groups[offset % len(groups)]

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        if index < 0:
            raise IndexError(f"batch {index} of an interleaved dataset")
        return [self._group(source, number) for source, number in self._plan[index]]

    def __len__(self) -> int:
        return self._total


@chz.chz
class InterleavedRLDatasetBuilder(RLDatasetBuilder):
    """Sources and their weights, without held-out data. ``total_batches`` None: as many as the sources fill without repeating
    one."""

    sources: list[RLDatasetBuilder]
    weights: list[float]
    groups_per_batch: int
    total_batches: int | None = None
    seed: int = 0

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        if len(self.sources) != len(self.weights) or not self.sources or min(self.weights) <= 0:
            raise ConfigurationError(f"{len(self.sources)} sources need as many weights above 0, got {self.weights}")
        if self.groups_per_batch < 1 or (self.total_batches is not None and self.total_batches < 1):
            raise ConfigurationError("groups_per_batch and total_batches must be at least 1")
        datasets = [(await source())[0] for source in self.sources]
        total = self.total_batches if self.total_batches is not None else self._one_pass(datasets)
        return InterleavedRLDataset(datasets, self.weights, self.groups_per_batch, total, self.seed), None

    def _one_pass(self, datasets: list[RLDataset]) -> int:
        """Batches until the first source would begin again, on average."""
        sizes = [len(dataset) * len(dataset.get_batch(0)) for dataset in datasets]
        groups = min(size * sum(self.weights) / weight for size, weight in zip(sizes, self.weights, strict=True))
        return max(int(groups) // self.groups_per_batch, 1)
