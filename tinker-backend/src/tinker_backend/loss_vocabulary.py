"""What an uploaded loss may name: functions, methods and attributes, free of torch.

The server reads this list to refuse an upload at the door; the runtime binds the names to what they call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_NODES = 4096

_POINTWISE = [
    "abs",
    "acos",
    "acosh",
    "add",
    "addcdiv",
    "addcmul",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "ceil",
    "clamp",
    "clamp_max",
    "clamp_min",
    "clip",
    "cos",
    "cosh",
    "div",
    "divide",
    "eq",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "floor_divide",
    "fmod",
    "frac",
    "ge",
    "gt",
    "heaviside",
    "isfinite",
    "isinf",
    "isnan",
    "le",
    "lerp",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "lt",
    "maximum",
    "minimum",
    "mul",
    "multiply",
    "nan_to_num",
    "ne",
    "neg",
    "negative",
    "positive",
    "pow",
    "reciprocal",
    "relu",
    "remainder",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "sub",
    "subtract",
    "tan",
    "tanh",
    "true_divide",
    "trunc",
    "where",
]
_REDUCTIONS = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "dot",
    "logcumsumexp",
    "logsumexp",
    "max",
    "mean",
    "median",
    "min",
    "nansum",
    "norm",
    "prod",
    "softmax",
    "log_softmax",
    "std",
    "sum",
    "var",
]
_SHAPES = [
    "broadcast_to",
    "cat",
    "chunk",
    "diff",
    "flatten",
    "flip",
    "gather",
    "index_select",
    "masked_fill",
    "masked_select",
    "movedim",
    "narrow",
    "permute",
    "ravel",
    "reshape",
    "roll",
    "select",
    "sort",
    "split",
    "squeeze",
    "stack",
    "take_along_dim",
    "tensor_split",
    "topk",
    "transpose",
    "tril",
    "triu",
    "unbind",
    "unsqueeze",
]
_CREATION = ["arange", "full", "full_like", "ones", "ones_like", "scalar_tensor", "tensor", "zeros", "zeros_like"]
METHODS = (
    *_POINTWISE,
    *_REDUCTIONS,
    *_SHAPES,
    *[
        "contiguous",
        "clone",
        "detach",
        "bool",
        "double",
        "float",
        "int",
        "long",
        "dim",
        "expand",
        "expand_as",
        "new_full",
        "new_ones",
        "new_tensor",
        "new_zeros",
        "numel",
        "requires_grad_",
        "size",
        "t",
        "to",
        "type_as",
        "view",
        "view_as",
    ],
)
ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim", "T"})
_OPERATORS = [
    "abs",
    "add",
    "and_",
    "eq",
    "floordiv",
    "ge",
    "getitem",
    "gt",
    "invert",
    "le",
    "lt",
    "mod",
    "mul",
    "ne",
    "neg",
    "not_",
    "or_",
    "pos",
    "pow",
    "sub",
    "truediv",
    "xor",
    "matmul",
]
_MATH = [
    "ceil",
    "cos",
    "erf",
    "exp",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log10",
    "log1p",
    "log2",
    "pow",
    "sin",
    "sqrt",
    "tan",
    "tanh",
]
_FUNCTIONAL = [
    "huber_loss",
    "l1_loss",
    "leaky_relu",
    "log_softmax",
    "logsigmoid",
    "mse_loss",
    "relu",
    "sigmoid",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "tanh",
]

TORCH_NAMES = (*_POINTWISE, *_REDUCTIONS, *_SHAPES, *_CREATION)
OPERATOR_NAMES = tuple(_OPERATORS)
MATH_NAMES = tuple(_MATH)
FUNCTIONAL_NAMES = tuple(_FUNCTIONAL)
_FUNCTION_NAMES = frozenset(
    [f"torch.{name}" for name in TORCH_NAMES]
    + [f"operator.{name}" for name in OPERATOR_NAMES]
    + [f"math.{name}" for name in MATH_NAMES]
    + [f"torch.nn.functional.{name}" for name in FUNCTIONAL_NAMES]
)
_METHOD_NAMES = frozenset(METHODS)


def function_name(target: str) -> str:
    """A target as the list names it; tracers write the operators' module with an underscore."""
    return target.replace("_operator.", "operator.")


def graph_mistake(graph: Mapping[str, Any]) -> str | None:
    """What is wrong with a graph before any data is there: its form, or a name outside the list. None: nothing."""
    nodes = graph.get("nodes")
    if graph.get("format") != 1 or not isinstance(nodes, list) or not nodes:
        return "format must be 1, with a list of nodes"
    if len(nodes) > MAX_NODES:
        return f"{len(nodes)} nodes; at most {MAX_NODES} are allowed"
    for node in nodes:
        if not isinstance(node, Mapping):
            return f"a node must be an object, not {type(node).__name__}"
        op, target = node.get("op"), str(node.get("target"))
        if op == "call_function":
            if target not in ("builtins.getattr", "getattr") and function_name(target) not in _FUNCTION_NAMES:
                return f"function {target[:200]!r} is not allowed; use functions of torch, math or operator on tensors"
        elif op == "call_method":
            if target not in _METHOD_NAMES:
                return f"method {target[:200]!r} is not allowed"
        elif op not in ("placeholder", "output"):
            return (
                f"node {str(node.get('name'))[:200]!r} has op {str(op)[:200]!r}; "
                "allowed: placeholder, call_function, call_method, output"
            )
    return None
