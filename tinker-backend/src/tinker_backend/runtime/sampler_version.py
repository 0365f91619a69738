"""Immutable weights versions that a sampler serves, and the base weights that several of them share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.kv_cache import RowPool
from tinker_backend.runtime.lora import Adapter


@dataclass(eq=False)
class WeightSet:
    """Weights of one forward, with the rows of all samples that run over them."""

    base: BaseModel
    weights: Mapping[str, Tensor]
    pools: dict[int, RowPool[Any]] = field(default_factory=dict)

    def pool(self, capacity: int) -> RowPool[Any]:
        """The rows of one capacity."""
        if capacity not in self.pools:
            self.pools[capacity] = RowPool(self.base.architecture, capacity, self.base.dtype, self.base.device)
        return self.pools[capacity]

    @property
    def running(self) -> int:
        """Samples that have a row."""
        return sum(len(pool.owners) for pool in self.pools.values())


@dataclass(eq=False)
class SamplerVersion:
    """A name that requests use: base weights alone, base with an adapter, or weights of its own."""

    name: str
    base: BaseModel
    weight_set: WeightSet
    adapter: Adapter | None = None
