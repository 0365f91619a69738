"""Custom losses: an interpreter of uploaded graphs over a closed list of functions.

A graph is data: nodes that name a function of ``torch``, ``math`` or ``operator``, a method of a tensor, or an attribute,
with arguments that refer to earlier nodes. Nothing is evaluated, imported or looked up by a name that the list below
does not hold, and the size of every intermediate tensor is bounded.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tinker_backend.runtime.roles import RuntimeFault

MAX_NODES = 4096
MAX_ELEMENTS = 16 * 1024 * 1024

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
_METHODS = (
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
_ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim", "T"})
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

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        f"torch.{name}": getattr(torch, name)
        for name in (*_POINTWISE, *_REDUCTIONS, *_SHAPES, *_CREATION)
        if hasattr(torch, name)
    },
    **{f"operator.{name}": getattr(operator, name) for name in _OPERATORS},
    **{f"math.{name}": getattr(math, name) for name in _MATH},
    **{f"torch.nn.functional.{name}": getattr(torch.nn.functional, name) for name in _FUNCTIONAL},
}
_DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "int32", "int64", "bool")}
_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")


@dataclass(frozen=True)
class GraphLoss:
    """Value of a custom loss on one datum, and its metrics (name:sum or name:mean)."""

    loss: Tensor
    metrics: dict[str, float]


def run_graph(graph: Mapping[str, Any], logprobs: Tensor, inputs: Mapping[str, Tensor]) -> GraphLoss:
    """Interprets a graph. Raises RuntimeFault (user) for anything outside the closed list, and for results of a wrong form."""
    nodes = graph.get("nodes")
    if graph.get("format") != 1 or not isinstance(nodes, list):
        raise _fault("format must be 1, with a list of nodes")
    if len(nodes) > MAX_NODES:
        raise _fault(f"{len(nodes)} nodes; at most {MAX_NODES} are allowed")
    values: dict[str, Any] = {}
    for node in nodes:
        name = str(node.get("name"))
        if node.get("op") == "output":
            return _finish(_argument(node["args"][0], values))
        try:
            values[name] = _evaluate(node, values, logprobs, inputs)
        except RuntimeFault:
            raise
        except Exception as error:
            raise _fault(f"node {name!r} ({node.get('target')}) failed: {error}") from error
        _check_size(name, values[name])
    raise _fault("it has no output node")


def check_graph(graph: Mapping[str, Any]) -> None:
    """Refuses a graph that names anything outside the closed list, before any data is there. Raises RuntimeFault (user)."""
    nodes = graph.get("nodes")
    if graph.get("format") != 1 or not isinstance(nodes, list) or not nodes:
        raise _fault("format must be 1, with a list of nodes")
    if len(nodes) > MAX_NODES:
        raise _fault(f"{len(nodes)} nodes; at most {MAX_NODES} are allowed")
    for node in nodes:
        op, target = node.get("op"), str(node.get("target"))
        if op == "call_function":
            _function(target)
        elif op == "call_method":
            _method(target)
        elif op not in ("placeholder", "output"):
            raise _fault(
                f"node {node.get('name')!r} has op {op!r}; allowed: placeholder, call_function, call_method, output"
            )


def _fault(detail: str) -> RuntimeFault:
    return RuntimeFault(f"custom loss graph: {detail}", "user")


def _function(target: str) -> Callable[..., Any]:
    if target in ("builtins.getattr", "getattr"):
        return _attribute
    cleaned = target.replace("_operator.", "operator.")
    found = FUNCTIONS.get(cleaned)
    if found is None:
        raise _fault(f"function {target!r} is not allowed; use functions of torch, math or operator on tensors")
    return found


def _attribute(value: Any, name: str) -> Any:
    if not isinstance(value, Tensor) or name not in _ATTRIBUTES:
        raise _fault(f"attribute {name!r} is not allowed; allowed on tensors: {', '.join(sorted(_ATTRIBUTES))}")
    return getattr(value, name)


def _method(target: str) -> str:
    if target not in _METHODS:
        raise _fault(f"method {target!r} is not allowed")
    return target


def _evaluate(
    node: Mapping[str, Any], values: Mapping[str, Any], logprobs: Tensor, inputs: Mapping[str, Tensor]
) -> Any:
    op, target = node.get("op"), str(node.get("target"))
    if op == "placeholder":
        if target == "logprobs":
            return logprobs
        if target not in inputs:
            raise _fault(f"input {target!r} is not in loss_fn_inputs of the datum")
        return inputs[target]
    args = [_argument(a, values) for a in node.get("args", [])]
    kwargs = {str(k): _argument(v, values) for k, v in node.get("kwargs", {}).items()}
    if op == "call_function":
        _bound_creation(target, args, kwargs)
        return _function(target)(*args, **kwargs)
    if op == "call_method":
        name = _method(target)
        if not args or not isinstance(args[0], Tensor):
            raise _fault(f"method {target!r} is called on something that is not a tensor")
        _bound_creation(target, args[1:], kwargs)
        return getattr(args[0], name)(*args[1:], **kwargs)
    raise _fault(f"op {op!r} is not allowed")


def _bound_creation(target: str, args: list[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuses shapes, repeats and ranges that would allocate too much before anything is allocated."""
    short = target.rsplit(".", 1)[-1]
    if short not in ("arange", "full", "ones", "zeros", "expand", "new_full", "new_ones", "new_zeros", "broadcast_to"):
        if short in ("pow", "mul") and all(isinstance(a, int) for a in args) and any(abs(a) > 2**31 for a in args):
            raise _fault(f"{target}: integer too large")
        return
    sizes = kwargs.get("size", args)
    flat = [n for a in sizes for n in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(n, (int, float))]
    if short == "arange":
        too_large = any(abs(n) > MAX_ELEMENTS for n in flat)
    else:
        too_large = math.prod(max(1, abs(int(n))) for n in flat if isinstance(n, int)) > MAX_ELEMENTS
    if too_large:
        raise _fault(f"{target} would make more than {MAX_ELEMENTS} elements")


def _check_size(name: str, value: Any) -> None:
    for item in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(item, Tensor) and item.numel() > MAX_ELEMENTS:
            raise _fault(f"node {name!r} has {item.numel()} elements; at most {MAX_ELEMENTS} are allowed")


def _argument(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_argument(v, values) for v in value]
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    if kind == "ref":
        if content not in values:
            raise _fault(f"node {content!r} is used before it is defined")
        return values[content]
    if kind == "tuple":
        return tuple(_argument(v, values) for v in content)
    if kind == "dict":
        return {k: _argument(v, values) for k, v in content.items()}
    if kind == "slice":
        return slice(*(_argument(v, values) for v in content))
    if kind == "ellipsis":
        return Ellipsis
    if kind == "float":
        return float(content)
    if kind == "dtype":
        short = str(content).removeprefix("torch.")
        short = {"float": "float32", "double": "float64", "long": "int64", "int": "int32"}.get(short, short)
        if short not in _DTYPES:
            raise _fault(f"dtype {content!r} is not allowed; allowed: {', '.join(_DTYPES)}")
        return _DTYPES[short]
    if kind == "device":
        return None
    raise _fault(f"argument of kind {kind!r} is not allowed")


def _finish(output: Any) -> GraphLoss:
    if not isinstance(output, (tuple, list)) or len(output) != 2 or not isinstance(output[1], dict):
        raise _fault("the output must be (scalar loss, dict of metrics)")
    loss, metrics = output
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise _fault("the loss must be a tensor with one element")
    named: dict[str, float] = {}
    for key, value in metrics.items():
        if not _METRIC.fullmatch(str(key)):
            raise _fault(f"metric {key!r} must be named custom/<name>:sum or custom/<name>:mean")
        named[str(key)] = float(value.detach().double().reshape(-1)[0] if isinstance(value, Tensor) else value)
    return GraphLoss(loss.reshape(()), named)
