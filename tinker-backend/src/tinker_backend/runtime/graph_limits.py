"""Bounds of custom losses, checked before memory or time is spent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tinker_backend.runtime.roles import RuntimeFault

MAX_ELEMENTS = 16 * 1024 * 1024
"""Of one intermediate tensor: a pair of 4096 positions."""
MAX_TOTAL_ELEMENTS = 8 * MAX_ELEMENTS
_MAX_INTEGER = 2**63
_SIZED = frozenset("full ones zeros expand new_full new_ones new_zeros broadcast_to reshape view".split())  # noqa: SIM905


class GraphFault(RuntimeFault):
    """A graph that is not computed; the sender's fault."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"custom loss graph: {detail}", "user")


def check_request(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuses a call whose result would be too large. Raises GraphFault."""
    short = target.rsplit(".", 1)[-1]
    if short in ("pow", "mul", "lshift") and _grows(short, args):
        raise GraphFault(f"{target}: number or list too large")
    if short == "arange" and any(abs(n) > MAX_ELEMENTS for n in _numbers([*args, *kwargs.values()])):
        raise GraphFault(f"{target} would make more than {MAX_ELEMENTS} elements")
    if short in _SIZED:
        sizes = [n for n in _numbers(kwargs.get("size", args)) if isinstance(n, int)]
        if math.prod(max(1, abs(n)) for n in sizes) > MAX_ELEMENTS:
            raise GraphFault(f"{target} would make more than {MAX_ELEMENTS} elements")
    if _elements(short, _tensors([*args, *kwargs.values()])) > MAX_ELEMENTS:
        raise GraphFault(f"{target} would make more than {MAX_ELEMENTS} elements")


def _grows(short: str, args: Sequence[Any]) -> bool:
    numbers = [a for a in args if isinstance(a, (int, float))]
    if short == "mul":
        return any(isinstance(a, (list, tuple, str)) for a in args)
    return len(numbers) == len(args) == 2 and abs(args[1]) > 64


def _numbers(values: Any) -> list[int | float]:
    flat = [n for v in values for n in (v if isinstance(v, (list, tuple)) else [v])]
    return [n for n in flat if isinstance(n, (int, float)) and not isinstance(n, bool)]


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [t for v in values for t in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(t, Tensor)]


def _elements(short: str, tensors: Sequence[Tensor]) -> int:
    """Upper bound of the elements that a call on these tensors makes."""
    if len(tensors) < 2:
        return 0
    if short in ("cat", "stack"):
        return sum(t.numel() for t in tensors)
    if short in ("getitem", "index_select"):
        first = tensors[0]
        return max(t.numel() for t in tensors[1:]) * (first.numel() // max(1, first.shape[0] if first.dim() else 1))
    if short == "matmul":
        return (tensors[0].numel() // max(1, tensors[0].shape[-1])) * (
            tensors[1].numel() // max(1, tensors[1].shape[0])
        )
    try:
        return torch.Size(torch.broadcast_shapes(*(t.shape for t in tensors))).numel()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return 0


def check_result(name: str, value: Any) -> int:
    """Elements that a node holds. Raises GraphFault when they, or an integer, are beyond the limit."""
    items = value if isinstance(value, (tuple, list)) else (value,)
    if any(isinstance(item, int) and abs(item) > _MAX_INTEGER for item in items):
        raise GraphFault(f"node {name!r} is an integer beyond 64 bits")
    elements = sum(item.numel() for item in items if isinstance(item, Tensor))
    if elements > MAX_ELEMENTS:
        raise GraphFault(f"node {name!r} has {elements} elements; at most {MAX_ELEMENTS} are allowed")
    return elements
