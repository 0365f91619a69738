"""Weights in the order in which oneDNN reads them, for products that are not differentiated.

A product of few rows takes as long as its weights take to stream through a core; in this order bfloat16 weights do so
about twice as fast. The numbers are those of oneDNN's product with the plain weights, bit for bit. It costs a second copy
of the weights, so only the sampler has one, and only of base models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinker_backend.runtime.hardware import available_memory

SUFFIX = ".packed"
_SHARE_OF_MEMORY = 0.25
"""The copy may take at most this part of the memory that is free when it is made."""
_FEW_ROWS = 4
_LARGE = 2048
"""For few float32 rows MKL is as fast, up to weights of so many rows."""
_SMALLEST = 4096
"""Weights with fewer elements are as fast as they are."""


def packs(weight: Tensor) -> bool:
    """Whether a packed copy of this weight can be made and is exact on this machine."""
    return weight.dim() == 2 and weight.numel() >= _SMALLEST and weight.device.type == "cpu" and _is_exact(weight.dtype)


def pack(weight_OI: Tensor) -> Tensor:
    """An opaque copy for ``packed_linear``."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), None)
    return packed


def packed_linear(x_nI: Tensor, packed: Tensor, bias_O: Tensor | None) -> Tensor:
    """``x W^T + bias`` (n, O). Not differentiable."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x_nI, packed, bias_O, "none", [], "")
    return out


def sampling_linear(x_nI: Tensor, weight_OI: Tensor, packed: Tensor | None, bias_O: Tensor | None) -> Tensor:
    """``x W^T + bias`` (n, O) by whichever weight is faster. Not differentiable."""
    if packed is None or (x_nI.shape[0] <= _FEW_ROWS and weight_OI.shape[0] < _LARGE and x_nI.dtype == torch.float32):
        return F.linear(x_nI, weight_OI, bias_O)
    return packed_linear(x_nI, packed, bias_O)


def packing(weights: Mapping[str, Tensor], target: MutableMapping[str, Tensor], names: list[str]) -> Iterator[None]:
    """Adds packed copies of the named weights to ``target`` under their names + ``SUFFIX``, one a turn, memory allowing."""
    chosen = [name for name in names if name in weights and packs(weights[name])]
    size = sum(weights[name].numel() * weights[name].element_size() for name in chosen)
    free = available_memory()
    if free is not None and size > _SHARE_OF_MEMORY * free:
        return
    for name in chosen:
        target[name + SUFFIX] = pack(weights[name])
        yield


@cache
def _is_exact(dtype: torch.dtype) -> bool:
    """Asks the machine: some builds and processors have no such kernels, or compute float32 with less than float32."""
    mkldnn: Any = torch.backends.mkldnn
    if dtype not in (torch.float32, torch.bfloat16) or not mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(320, 192, generator=generator).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    try:
        packed = pack(weight)
        for rows in (1, 5, 64):
            x = torch.randn(rows, 192, generator=generator).to(dtype)
            wide = F.linear(x.double(), weight.double())
            if bool((packed_linear(x, packed, None) - wide).abs().max() > tolerance * wide.abs().max()):
                return False
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True
