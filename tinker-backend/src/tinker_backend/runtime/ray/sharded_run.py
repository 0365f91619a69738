"""State of a run on one rank: what is trained, with gradients and Adam moments sharded over all ranks.

An adapter is small, so every rank holds its values whole and a slice of everything else. All weights are DTensors of a
module of their own (FSDP2), and the moments have the layout of its shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.lora import Adapter, AdapterLayout
from tinker_backend.runtime.ray.sharded_decoder import ShardedDecoder
from tinker_backend.runtime.roles import OptimParams, RunSpec
from tinker_backend.runtime.training_run import FullLayout, adamw

# torch 2.13 renamed them.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def world_sum(value: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The sum over ranks, in place."""
    dist.all_reduce(value, group=group)
    return value


def _clip(gradients: list[Tensor], squares: Tensor, params: OptimParams, group: dist.ProcessGroup | None) -> float:
    """Global L2 norm of sharded gradients; they are scaled down to ``grad_clip_norm``."""
    norm = float(world_sum(squares, group).sqrt())
    if params.grad_clip_norm > 0:
        for gradient in gradients:
            gradient.mul_(min(1.0, params.grad_clip_norm / (norm + 1e-6)))
    return norm


def _squares(gradients: list[Tensor], device: torch.device) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=device)
    for gradient in gradients:
        total += torch.linalg.vector_norm(gradient, dtype=torch.float64).square().to(device)
    return total


@dataclass
class AdapterRun:
    """An adapter. ``values`` (padded to a multiple of the ranks) is whole, all else this rank's slice."""

    spec: RunSpec
    base: BaseModel
    layout: AdapterLayout
    values: Tensor
    gradients: Tensor | None = None
    exp_avg: Tensor | None = None
    exp_avg_sq: Tensor | None = None
    step: int = 0
    is_full: bool = False
    _adapter: Adapter | None = field(default=None, repr=False)

    def adapter(self) -> Adapter:
        """The adapter as it is now."""
        if self._adapter is None:
            self._adapter = Adapter(self.layout, self.values[: self.layout.size], self.base.dtype)
        return self._adapter

    def padded(self, flat: Tensor) -> Tensor:
        """``flat`` with zeros up to a multiple of the ranks."""
        missing = -flat.numel() % dist.get_world_size()
        return torch.cat([flat, flat.new_zeros(missing)]) if missing else flat

    def slice(self, flat: Tensor) -> Tensor:
        """This rank's part of a padded vector."""
        size = flat.numel() // dist.get_world_size()
        return flat[dist.get_rank() * size : (dist.get_rank() + 1) * size]

    def whole(self, part: Tensor | None) -> Tensor | None:
        """The vector of which every rank gives its part."""
        if part is None:
            return None
        out = part.new_empty(part.numel() * dist.get_world_size())
        _all_gather(out, part.contiguous())
        return out[: self.layout.size]

    def reduce(self, staged: Tensor) -> Tensor:
        """This rank's part of the sum of all ranks' gradients."""
        padded = self.padded(staged)
        part = padded.new_empty(padded.numel() // dist.get_world_size())
        _reduce_scatter(part, padded)
        return part

    def add_gradients(self, part: Tensor) -> None:
        """Adds what one call collected."""
        self.gradients = part if self.gradients is None else self.gradients.add_(part)

    def optim_step(self, params: OptimParams) -> dict[str, float]:
        """One AdamW step; without gradients nothing changes and the metrics say so."""
        gradients, self.gradients = self.gradients, None
        if gradients is None:
            return {"grad_norm": 0.0, "skipped_no_gradients": 1.0, "step": float(self.step)}
        norm = _clip([gradients], _squares([gradients], gradients.device), params, None)
        if self.exp_avg is None or self.exp_avg_sq is None:
            self.exp_avg, self.exp_avg_sq = torch.zeros_like(gradients), torch.zeros_like(gradients)
        self.step += 1
        part = self.slice(self.values).clone()
        adamw(part, gradients, self.exp_avg, self.exp_avg_sq, self.step, params)
        values = torch.empty_like(self.values)
        _all_gather(values, part)
        self.values, self._adapter = values, None
        return {"grad_norm": norm, "learning_rate": params.learning_rate, "step": float(self.step)}


@dataclass
class FullRun:
    """All weights of a model of its own; ``moments`` are local shards by name."""

    spec: RunSpec
    base: BaseModel
    layout: FullLayout
    module: ShardedDecoder
    shard_group: dist.ProcessGroup | None
    has_gradients: bool = False
    exp_avg: dict[str, Tensor] = field(default_factory=dict)
    exp_avg_sq: dict[str, Tensor] = field(default_factory=dict)
    step: int = 0
    is_full: bool = True

    def gathered(self) -> Iterator[tuple[str, Tensor]]:
        """Whole weights by name in the order of ``Architecture.plan``, one at a time; every rank must take all of them."""
        shards = self.module.shards()
        for name in self.layout.places:
            data = shards[name].data
            yield name, data.full_tensor() if isinstance(data, DTensor) else data

    def local_gradients(self) -> list[Tensor]:
        """Gradient shards of this rank."""
        return [local(p.grad) for p in self.module.shards().values() if p.grad is not None]

    def take_gradients(self) -> dict[str, Tensor | None]:
        """Removes the gradients from the parameters and returns them."""
        taken: dict[str, Tensor | None] = {}
        for name, parameter in self.module.shards().items():
            taken[name], parameter.grad = parameter.grad, None
        return taken

    def add_gradients(self, earlier: dict[str, Tensor | None]) -> None:
        """Adds gradients that ``take_gradients`` set aside."""
        for name, parameter in self.module.shards().items():
            before = earlier[name]
            if before is not None:
                parameter.grad = before if parameter.grad is None else parameter.grad.add_(before)

    def optim_step(self, params: OptimParams) -> dict[str, float]:
        """One AdamW step on every shard; without gradients nothing changes and the metrics say so."""
        if not self.has_gradients:
            return {"grad_norm": 0.0, "skipped_no_gradients": 1.0, "step": float(self.step)}
        gradients = self.local_gradients()
        norm = _clip(gradients, _squares(gradients, self.base.device), params, self.shard_group)
        self.step += 1
        for name, parameter in self.module.shards().items():
            values = local(parameter.data)
            if name not in self.exp_avg:
                self.exp_avg[name], self.exp_avg_sq[name] = torch.zeros_like(values), torch.zeros_like(values)
            # A weight that no token reached has no gradient on any rank, but its moments decay all the same.
            gradient = torch.zeros_like(values) if parameter.grad is None else local(parameter.grad)
            adamw(values, gradient, self.exp_avg[name], self.exp_avg_sq[name], self.step, params)
            parameter.grad = None
        self.has_gradients = False
        return {"grad_norm": norm, "learning_rate": params.learning_rate, "step": float(self.step)}


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a DTensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


ShardedRun = AdapterRun | FullRun
