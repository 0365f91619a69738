"""Low-rank adapters of many runs over one base forward.

All tensors of an adapter live in one flat float32 buffer, so that gradients, Adam moments, clipping, snapshots and
publication are operations on vectors. For the forward a buffer is packed per fused projection: A stacked over the modules
that share the input, B block-diagonal and already multiplied with the scale. Rows of a batch are sorted by adapter, and
each adapter touches its rows alone.
"""

from __future__ import annotations

import math
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinker_backend.runtime.architecture import Architecture
from tinker_backend.runtime.autograd import apply
from tinker_backend.runtime.hardware import small_products
from tinker_backend.runtime.packed_weights import sampling_linear
from tinker_backend.runtime.roles import LoraSpec

_SMALL_ROWS = 64
"""Up to so many rows a segment's float32 products are small ones."""
_FEW_ROWS = 8
"""Up to so many rows narrow products cost their calls alone, and those of float32 cost least."""
Key = tuple[int, str]
"""(layer, group); the head is (layers, "head")."""


@dataclass(frozen=True)
class AdaptedModule:
    """One adapted checkpoint module: rows ``row:row+out`` of its fused projection, ranks ``rank_at:rank_at+r`` of A."""

    path: str
    row: int
    out: int
    rank_at: int


@dataclass(frozen=True)
class AdaptedProjection:
    """The adapted modules of one fused projection and where their tensors are in the flat buffer."""

    key: Key
    in_features: int
    out_features: int
    modules: tuple[AdaptedModule, ...]
    a_at: int
    b_at: tuple[int, ...]


class AdapterLayout:
    """Where each A and B of an adapter is in its flat buffer."""

    def __init__(self, architecture: Architecture, spec: LoraSpec) -> None:
        self.spec = spec
        self.rank = spec.rank
        self.scale = spec.alpha / spec.rank
        self.projections: dict[Key, AdaptedProjection] = {}
        groups = [g for g, on in (("qkv", spec.train_attn), ("o", spec.train_attn), ("up", spec.train_mlp)) if on]
        groups += ["down"] if spec.train_mlp else []
        keys = [(layer, group) for layer in range(architecture.layers) for group in groups]
        keys += [(architecture.layers, "head")] if spec.train_unembed else []
        at = 0
        for key in keys:
            projection = architecture.projection(*key)
            modules, row = [], 0
            for index, (path, out) in enumerate(projection.modules):
                modules.append(AdaptedModule(path, row, out, index * self.rank))
                row += out
            a_at, at = at, at + len(modules) * self.rank * projection.in_features
            b_at = []
            for module in modules:
                b_at.append(at)
                at += module.out * self.rank
            self.projections[key] = AdaptedProjection(
                key, projection.in_features, row, tuple(modules), a_at, tuple(b_at)
            )
        self.size = at

    def a(self, flat: Tensor, projection: AdaptedProjection) -> Tensor:
        """View (modules * rank, in) of the stacked A matrices."""
        rows = len(projection.modules) * self.rank
        end = projection.a_at + rows * projection.in_features
        return flat[projection.a_at : end].view(rows, projection.in_features)

    def b(self, flat: Tensor, projection: AdaptedProjection, index: int) -> Tensor:
        """View (out, rank) of the B matrix of one module."""
        out = projection.modules[index].out
        return flat[projection.b_at[index] : projection.b_at[index] + out * self.rank].view(out, self.rank)

    def initial(self) -> Tensor:
        """A uniform in +-1/sqrt(in) (Kaiming with a = sqrt 5) by the seed of the spec, B zero."""
        seed = self.spec.seed if self.spec.seed is not None else int.from_bytes(os.urandom(7), "little")
        generator = torch.Generator().manual_seed(seed)
        flat = torch.zeros(self.size)
        for projection in self.projections.values():
            bound = 1.0 / math.sqrt(projection.in_features)
            self.a(flat, projection).uniform_(-bound, bound, generator=generator)
        return flat

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of all matrices under ``<module>.lora_A.weight`` and ``<module>.lora_B.weight``."""
        named: dict[str, Tensor] = {}
        for projection in self.projections.values():
            a = self.a(flat, projection)
            for index, module in enumerate(projection.modules):
                named[f"{module.path}.lora_A.weight"] = a[module.rank_at : module.rank_at + self.rank]
                named[f"{module.path}.lora_B.weight"] = self.b(flat, projection, index)
        return named


@dataclass(frozen=True)
class PackedProjection:
    """A stacked (R, in) and B block-diagonal times the scale (out, R), in the dtype of the base."""

    a_RI: Tensor
    b_OR: Tensor

    @cached_property
    def wide(self) -> tuple[Tensor, Tensor]:
        """The same two in float32 and transposed, for samplers with few rows."""
        return self.a_RI.float().t(), self.b_OR.float().t()


class Adapter:
    """An immutable view of adapter weights, ready for the forward. Packed on first use."""

    def __init__(self, layout: AdapterLayout, flat: Tensor, dtype: torch.dtype) -> None:
        self.layout = layout
        self.flat = flat
        self.dtype = dtype
        self._packed: dict[Key, PackedProjection] | None = None

    def packed(self, key: Key) -> PackedProjection | None:
        """Matrices for one projection, None when it has no adapter."""
        if self._packed is None:
            self._packed = {k: self._pack(p) for k, p in self.layout.projections.items()}
        return self._packed.get(key)

    def _pack(self, projection: AdaptedProjection) -> PackedProjection:
        layout = self.layout
        a = layout.a(self.flat, projection)
        if len(projection.modules) == 1:
            # The head computes in float32 on a CPU, so its adapter does too.
            head = projection.key[1] == "head" and self.flat.device.type == "cpu"
            dtype = torch.float32 if head else self.dtype
            return PackedProjection(a.to(dtype), (layout.b(self.flat, projection, 0) * layout.scale).to(dtype))
        b = self.flat.new_zeros(projection.out_features, a.shape[0])
        for index, module in enumerate(projection.modules):
            block = b[module.row : module.row + module.out, module.rank_at : module.rank_at + layout.rank]
            torch.mul(layout.b(self.flat, projection, index), layout.scale, out=block)
        return PackedProjection(a.to(self.dtype), b.to(self.dtype))


class GradientSink:
    """Receives the gradients of one adapter's matrices during a backward; ``flat`` has the layout of the adapter."""

    def __init__(self, layout: AdapterLayout, flat: Tensor) -> None:
        self.layout = layout
        self.flat = flat

    def add(self, key: Key, x: Tensor, u: Tensor, du: Tensor, dy: Tensor) -> None:
        """Adds dA = du^T x and, per module, dB = scale * dy^T u. x (n, in), u and du (n, R), dy (n, out)."""
        layout = self.layout
        projection = layout.projections[key]
        _accumulate(layout.a(self.flat, projection), du, x, 1.0)
        for index, module in enumerate(projection.modules):
            dy_part = dy[:, module.row : module.row + module.out]
            u_part = u[:, module.rank_at : module.rank_at + layout.rank]
            _accumulate(layout.b(self.flat, projection, index), dy_part, u_part, layout.scale)


def _accumulate(target: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
    if left.dtype == target.dtype:
        target.addmm_(left.t(), right, alpha=scale)
    else:
        target.add_(left.t() @ right, alpha=scale)


@dataclass(frozen=True)
class AdapterSegment:
    """Rows ``start:stop`` of a batch use ``adapter`` (None: the base alone); gradients go to ``sink``."""

    start: int
    stop: int
    adapter: Adapter | None
    sink: GradientSink | None = None


def lora_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    segments: list[AdapterSegment],
    key: Key,
    packed: Tensor | None = None,
) -> Tensor:
    """``x W^T + bias`` with every segment's low-rank term; only x is differentiated, sinks take the rest.

    ``packed`` is the weight in another order (see ``packed_weights``), for products that are not differentiated.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return apply(_LoraLinear, x, weight, bias, segments, key)
    out = sampling_linear(x, weight, packed, bias)
    if len(segments) != 1 or segments[0].adapter is not None:
        add_low_rank(x, out, segments, key)
    return out


def add_low_rank(x: Tensor, out: Tensor, segments: list[AdapterSegment], key: Key) -> None:
    """Adds the low-rank terms to ``out``, for products that are not differentiated."""
    for segment in segments:
        packed = segment.adapter.packed(key) if segment.adapter is not None else None
        if packed is None:
            continue
        count = segment.stop - segment.start
        alone = count == x.shape[0]
        rows, target = (x, out) if alone else (x[segment.start : segment.stop], out[segment.start : segment.stop])
        if count <= _FEW_ROWS and out.dtype != torch.float32 and out.device.type == "cpu":
            a_IR, b_RO = packed.wide
            with small_products():
                target.add_(torch.mm(torch.mm(rows.float(), a_IR), b_RO))
        else:
            with small_products() if count <= _SMALL_ROWS else nullcontext():
                target.addmm_(rows @ packed.a_RI.t(), packed.b_OR.t())


def _add_low_rank(x: Tensor, out: Tensor, segments: list[AdapterSegment], key: Key) -> list[Tensor | None]:
    kept: list[Tensor | None] = []
    with _products_of(segments):
        for segment in segments:
            packed = segment.adapter.packed(key) if segment.adapter is not None else None
            if packed is None:
                kept.append(None)
                continue
            u = x[segment.start : segment.stop] @ packed.a_RI.t()
            out[segment.start : segment.stop].addmm_(u, packed.b_OR.t())
            kept.append(u)
    return kept


def _products_of(segments: list[AdapterSegment]) -> AbstractContextManager[None]:
    """Runs with few rows each make small products."""
    return small_products() if all(s.stop - s.start <= _SMALL_ROWS for s in segments) else nullcontext()


def low_rank_backward(
    x: Tensor, grad: Tensor, grad_x: Tensor, kept: list[Tensor | None], segments: list[AdapterSegment], key: Key
) -> None:
    """Adds the low-rank part to ``grad_x`` and feeds the sinks. ``kept`` is x A^T per segment, as of the forward."""
    with _products_of(segments):
        for segment, u in zip(segments, kept, strict=True):
            if segment.adapter is None or u is None:
                continue
            packed = segment.adapter.packed(key)
            assert packed is not None
            rows = slice(segment.start, segment.stop)
            du = grad[rows] @ packed.b_OR
            grad_x[rows].addmm_(du, packed.a_RI)
            if segment.sink is not None:
                segment.sink.add(key, x[rows], u, du, grad[rows])


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, segments: list[AdapterSegment], key: Key
    ) -> Tensor:
        out = F.linear(x, weight, bias)
        ctx.kept = _add_low_rank(x, out, segments, key)
        ctx.save_for_backward(x, weight)
        ctx.segments, ctx.key = segments, key
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x = grad @ weight
        low_rank_backward(x, grad, grad_x, ctx.kept, ctx.segments, ctx.key)
        return grad_x, None, None, None, None
