"""A typed way to call autograd functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    """``function.apply(*args)`` for functions that return one tensor."""
    result: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return result
