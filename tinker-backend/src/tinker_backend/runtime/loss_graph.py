"""Custom losses: an interpreter of uploaded graphs over a closed list of functions.

A graph is data: nodes that name a function of ``torch``, ``math`` or ``operator``, a method of a tensor, or an attribute,
with arguments that refer to earlier nodes. Nothing is evaluated, imported or looked up by a name that the list below
does not hold, and the size of every intermediate tensor is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tinker_backend.loss_vocabulary import MAX_NODES, function_name, graph_mistake
from tinker_backend.runtime.graph_limits import MAX_TOTAL_ELEMENTS, GraphFault, check_request, check_result
from tinker_backend.runtime.graph_vocabulary import ATTRIBUTES, DTYPES, FUNCTIONS, METHODS

_METRIC = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")


@dataclass(frozen=True)
class GraphLoss:
    """Value of a custom loss on one datum, and its metrics (name:sum or name:mean)."""

    loss: Tensor
    metrics: dict[str, float]


def run_graph(graph: Mapping[str, Any], logprobs: Tensor, inputs: Mapping[str, Tensor]) -> GraphLoss:
    """Interprets a graph. Raises GraphFault for anything outside the closed list, and for results of a wrong form."""
    nodes = graph.get("nodes")
    if graph.get("format") != 1 or not isinstance(nodes, list):
        raise GraphFault("format must be 1, with a list of nodes")
    if len(nodes) > MAX_NODES:
        raise GraphFault(f"{len(nodes)} nodes; at most {MAX_NODES} are allowed")
    values: dict[str, Any] = {}
    elements = 0
    for node in nodes:
        name = str(node.get("name"))
        if node.get("op") == "output":
            return _output(node, values)
        try:
            values[name] = _evaluate(node, values, logprobs, inputs)
        except GraphFault:
            raise
        except Exception as error:
            raise GraphFault(f"node {name!r} ({node.get('target')}) failed: {error}") from error
        elements += check_result(name, values[name])
        if elements > MAX_TOTAL_ELEMENTS:
            raise GraphFault(f"its nodes hold more than {MAX_TOTAL_ELEMENTS} elements together")
    raise GraphFault("it has no output node")


def check_graph(graph: Mapping[str, Any]) -> None:
    """Refuses a graph that names anything outside the closed list, before any data is there. Raises GraphFault."""
    if (mistake := graph_mistake(graph)) is not None:
        raise GraphFault(mistake)


def _function(target: str) -> Callable[..., Any]:
    if target in ("builtins.getattr", "getattr"):
        return _attribute
    found = FUNCTIONS.get(function_name(target))
    if found is None:
        raise GraphFault(f"function {target!r} is not allowed; use functions of torch, math or operator on tensors")
    return found


def _attribute(value: Any, name: str) -> Any:
    if not isinstance(value, Tensor) or name not in ATTRIBUTES:
        raise GraphFault(f"attribute {name!r} is not allowed; allowed on tensors: {', '.join(sorted(ATTRIBUTES))}")
    return getattr(value, name)


def _method(target: str) -> str:
    if target not in METHODS:
        raise GraphFault(f"method {target!r} is not allowed")
    return target


def _evaluate(
    node: Mapping[str, Any], values: Mapping[str, Any], logprobs: Tensor, inputs: Mapping[str, Tensor]
) -> Any:
    op, target = node.get("op"), str(node.get("target"))
    if op == "placeholder":
        if target == "logprobs":
            return logprobs
        if target not in inputs:
            raise GraphFault(f"input {target!r} is not in loss_fn_inputs of the datum")
        return inputs[target]
    args = [_argument(a, values) for a in node.get("args", [])]
    kwargs = {str(k): _argument(v, values) for k, v in node.get("kwargs", {}).items()}
    if op == "call_function":
        check_request(target, args, kwargs)
        return _function(target)(*args, **kwargs)
    if op == "call_method":
        name = _method(target)
        if not args or not isinstance(args[0], Tensor):
            raise GraphFault(f"method {target!r} is called on something that is not a tensor")
        check_request(target, args, kwargs)
        return getattr(args[0], name)(*args[1:], **kwargs)
    raise GraphFault(f"op {op!r} is not allowed")


def _argument(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_argument(v, values) for v in value]
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    if kind == "ref":
        if content not in values:
            raise GraphFault(f"node {content!r} is used before it is defined")
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
        if short not in DTYPES:
            raise GraphFault(f"dtype {content!r} is not allowed; allowed: {', '.join(DTYPES)}")
        return DTYPES[short]
    if kind == "device":
        return None
    raise GraphFault(f"argument of kind {kind!r} is not allowed")


def _output(node: Mapping[str, Any], values: Mapping[str, Any]) -> GraphLoss:
    try:
        output = _argument(node["args"][0], values)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise GraphFault(f"the output node is malformed: {error}") from error
    if not isinstance(output, (tuple, list)) or len(output) != 2 or not isinstance(output[1], dict):
        raise GraphFault("the output must be (scalar loss, dict of metrics)")
    loss, metrics = output
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise GraphFault("the loss must be a tensor with one element")
    named: dict[str, float] = {}
    for key, value in metrics.items():
        if not _METRIC.fullmatch(str(key)):
            raise GraphFault(f"metric {key!r} must be named custom/<name>:sum or custom/<name>:mean")
        named[str(key)] = float(value.detach().double().reshape(-1)[0] if isinstance(value, Tensor) else value)
    return GraphLoss(loss.reshape(()), named)
