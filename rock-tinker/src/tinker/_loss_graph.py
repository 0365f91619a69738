"""Wire form of traced losses."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from .types.custom_loss import CustomLossGraph, CustomLossNode

if TYPE_CHECKING:
    import torch

_FORBIDDEN_METHODS = ("item", "numpy", "tolist", "backward", "cpu", "cuda", "data_ptr")


def encode_graph(module: torch.fx.GraphModule) -> CustomLossGraph:
    """All nodes in order. Raises ValueError for modules, captured tensors and operations outside torch and math."""
    return CustomLossGraph(nodes=[_encode_node(node) for node in module.graph.nodes])


def _encode_node(node: Any) -> CustomLossNode:
    if node.op == "call_module":
        raise ValueError(f"a custom loss must not call modules, got {node.target!r}")
    if node.op == "get_attr":
        raise ValueError(f"a custom loss must not capture tensors, got {node.target!r}; pass them as inputs")
    if node.op == "call_method" and node.target in _FORBIDDEN_METHODS:
        raise ValueError(f"a custom loss must not call .{node.target}()")
    target = _function_name(node.target) if node.op == "call_function" else str(node.target)
    return CustomLossNode(
        op=node.op,
        name=node.name,
        target=target,
        args=[encode_argument(argument) for argument in node.args],
        kwargs={key: encode_argument(value) for key, value in node.kwargs.items()},
    )


def _function_name(function: Any) -> str:
    name = getattr(function, "__name__", "")
    if getattr(operator, name, None) is function:
        return f"operator.{name}"
    if getattr(math, name, None) is function:
        return f"math.{name}"
    if function is getattr:
        return "builtins.getattr"
    import torch

    for prefix, module in (
        ("torch", torch),
        ("torch.nn.functional", torch.nn.functional),
        ("torch.special", torch.special),
        ("torch.linalg", torch.linalg),
    ):
        if getattr(module, name, None) is function:
            return f"{prefix}.{name}"
    raise ValueError(f"a custom loss may only call torch, math and operator functions, got {function!r}")


def encode_argument(value: Any) -> Any:
    """One argument of a node; raises ValueError for values without a wire form."""
    import torch
    import torch.fx

    if isinstance(value, torch.fx.Node):
        return {"ref": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        raise ValueError("a custom loss must not capture tensors; pass them as inputs")
    if isinstance(value, tuple):
        return {"tuple": [encode_argument(item) for item in value]}
    if isinstance(value, list):
        return [encode_argument(item) for item in value]
    if isinstance(value, dict):
        return {"dict": {str(key): encode_argument(item) for key, item in value.items()}}
    if isinstance(value, slice):
        return {"slice": [encode_argument(part) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    for key, kind in (
        ("dtype", torch.dtype),
        ("device", torch.device),
        ("layout", torch.layout),
        ("memory_format", torch.memory_format),
    ):
        if isinstance(value, kind):
            return {key: str(value)}
    raise ValueError(f"a custom loss has an argument of type {type(value).__name__}, which does not travel")
