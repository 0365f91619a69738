"""Forward and backward passes: input, request and result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .datum import Datum
from .tensor_data import TensorData

LossFnType = Literal[
    "cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce", "custom"
]
LossFnOutput = dict[str, TensorData]


@dataclass(frozen=True)
class ForwardBackwardInput:
    data: list[Datum]
    loss_fn: LossFnType
    loss_fn_config: Mapping[str, float | str] | None = None


@dataclass(frozen=True)
class ForwardBackwardRequest:
    forward_backward_input: ForwardBackwardInput
    model_id: str
    seq_id: int | None = None


@dataclass(frozen=True)
class ForwardRequest:
    forward_input: ForwardBackwardInput
    model_id: str
    seq_id: int | None = None


@dataclass(frozen=True)
class ForwardBackwardOutput:
    """One output (at least ``logprobs``) a datum, and metrics with keys ``name:reducer``."""

    loss_fn_output_type: str
    loss_fn_outputs: list[LossFnOutput]
    metrics: dict[str, float] = field(default_factory=dict)
