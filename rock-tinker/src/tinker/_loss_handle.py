"""Losses of your own: a function of one datum, traced into a graph that a server can run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate

from .types.custom_loss import CustomLossInput, CustomLossInputRank
from .types.tensor_data import import_torch

if TYPE_CHECKING:
    import torch

PerDatumLossFn = Callable[Concatenate["torch.Tensor", ...], "tuple[torch.Tensor, Mapping[str, torch.Tensor]]"]

_MAX_INPUTS = 16
_INPUT_NAME = re.compile(r"[a-z_][a-z0-9_]{0,63}")
_METRIC_KEY = re.compile(r"custom/[a-z0-9_./-]{1,64}:(sum|mean)")


@dataclass(frozen=True)
class LossHandle:
    """A traced loss. With ``loss_id`` the server runs it, without it runs here."""

    name: str
    inputs: tuple[CustomLossInput, ...]
    session_id: str
    graph: torch.fx.GraphModule
    loss_id: str | None = None

    @property
    def input_names(self) -> tuple[str, ...]:
        """Parameters in order; the first is ``logprobs``."""
        return tuple(declared.name for declared in self.inputs)

    @property
    def key(self) -> str:
        """A name that is unique in its session."""
        return self.loss_id or self.name


def declared_inputs(fn: Callable[..., Any], ranks: Mapping[str, CustomLossInputRank]) -> tuple[CustomLossInput, ...]:
    """The inputs of a loss function by its signature and the given ranks; raises ValueError for a bad one."""
    parameters = list(inspect.signature(fn).parameters.values())
    names = [parameter.name for parameter in parameters]
    if not names or names[0] != "logprobs":
        raise ValueError(f"the first parameter of a custom loss must be 'logprobs', got {names[:1]}")
    if len(names) > _MAX_INPUTS:
        raise ValueError(f"a custom loss takes at most {_MAX_INPUTS} parameters, got {len(names)}")
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise ValueError(f"parameter {parameter.name!r} of a custom loss must be positional")
        if parameter.default is not parameter.empty:
            raise ValueError(f"parameter {parameter.name!r} of a custom loss must not have a default")
        if not _INPUT_NAME.fullmatch(parameter.name):
            raise ValueError(f"parameter {parameter.name!r} of a custom loss must match {_INPUT_NAME.pattern}")
    if set(ranks) != set(names):
        raise ValueError(f"input_ranks must name the parameters {sorted(names)}, got {sorted(ranks)}")
    for name, rank in ranks.items():
        if rank not in (0, 1, 2) or (name == "logprobs" and rank == 0):
            allowed = "1 or 2" if name == "logprobs" else "0, 1 or 2"
            raise ValueError(f"the rank of {name!r} must be {allowed}, got {rank!r}")
    return tuple(CustomLossInput(name=name, rank=ranks[name]) for name in names)


def trace(fn: Callable[..., Any]) -> torch.fx.GraphModule:
    """Record the torch operations of ``fn``; raises ValueError for what a graph cannot hold."""
    import_torch()
    import torch.fx

    try:
        graph = torch.fx.symbolic_trace(fn)
    except Exception as error:
        raise ValueError(
            f"the custom loss cannot be traced ({error}); use torch, math and operator functions only, "
            "and no control flow that depends on values"
        ) from error
    _check_output(graph)
    return graph


def _check_output(graph: torch.fx.GraphModule) -> None:
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    value = output.args[0]
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[1], dict):
        raise ValueError("a custom loss must return (loss, metrics), a scalar and a dict")
    for key in value[1]:
        if not isinstance(key, str) or not _METRIC_KEY.fullmatch(key):
            raise ValueError(f"metric {key!r} of a custom loss must have the form custom/<name>:sum or :mean")
