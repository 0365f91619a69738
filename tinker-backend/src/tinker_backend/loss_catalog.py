"""The losses a client may name, with their inputs and options, free of torch.

The server reads this table to refuse bad requests at the door; the runtime reads it for defaults.
All losses are sums over positions and datums; thresholds are absolute probability ratios.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class LossInput:
    """One tensor of a datum's ``loss_fn_inputs``."""

    dtype: str
    """``int64`` or ``float32``."""
    required: bool = True
    max_rank: int = 1
    """1: shape (N,); 2: shape (N,) or (N, K), dense or CSR."""


@dataclass(frozen=True)
class LossEntry:
    """What a loss needs and accepts."""

    inputs: Mapping[str, LossInput]
    config: Mapping[str, float | str] = field(default_factory=lambda: MappingProxyType({}))
    """Accepted keys of ``loss_fn_config`` with their defaults."""


_TARGETS = LossInput("int64")
_POLICY_INPUTS = {"target_tokens": _TARGETS, "logprobs": LossInput("float32"), "advantages": LossInput("float32")}
_CLIP_INPUTS = {
    **_POLICY_INPUTS,
    "clip_low_threshold": LossInput("float32", required=False),
    "clip_high_threshold": LossInput("float32", required=False),
}

LOSSES: Mapping[str, LossEntry] = MappingProxyType(
    {
        "cross_entropy": LossEntry(
            {"target_tokens": LossInput("int64", max_rank=2), "weights": LossInput("float32", False, max_rank=2)}
        ),
        "importance_sampling": LossEntry(_POLICY_INPUTS),
        "ppo": LossEntry(_CLIP_INPUTS, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
        "cispo": LossEntry(_CLIP_INPUTS, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
        "dro": LossEntry(_POLICY_INPUTS, {"beta": 0.05}),
        "gspo": LossEntry(
            {**_CLIP_INPUTS, "sequence_ratio_mask": LossInput("float32")},
            {"clip_low_threshold": 1.0 - 3e-4, "clip_high_threshold": 1.0 + 4e-4},
        ),
        "truncated_importance_sampling": LossEntry(_POLICY_INPUTS, {"ratio_limit": 2.0, "kl_coeff": 0.01}),
    }
)
"""Losses with a known formula. ``custom`` is dealt with by the server itself, and so is ``stable_reinforce``: it is
refused, or computed as ``truncated_importance_sampling`` where the server's configuration says so."""
