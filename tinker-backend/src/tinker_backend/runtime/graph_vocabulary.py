"""The closed list of functions that a custom loss may use, bound to what they call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from tinker_backend.loss_vocabulary import (
    ATTRIBUTES,
    FUNCTIONAL_NAMES,
    MATH_NAMES,
    METHODS,
    OPERATOR_NAMES,
    TORCH_NAMES,
)

__all__ = ["ATTRIBUTES", "DTYPES", "FUNCTIONS", "METHODS"]

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"torch.{name}": getattr(torch, name) for name in TORCH_NAMES if hasattr(torch, name)},
    **{f"operator.{name}": getattr(operator, name) for name in OPERATOR_NAMES},
    **{f"math.{name}": getattr(math, name) for name in MATH_NAMES},
    **{f"torch.nn.functional.{name}": getattr(torch.nn.functional, name) for name in FUNCTIONAL_NAMES},
}
DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "int32", "int64", "bool")}
