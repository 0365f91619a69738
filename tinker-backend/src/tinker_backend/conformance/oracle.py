"""What the numbers should be: losses, their derivatives by the logprobs, and AdamW, in float64 numpy.

Thresholds are absolute ratios; every loss is a sum over positions. ``lp`` are the learner's logprobs, ``q`` those
that the client sent, ``adv`` the advantages, ``r = exp(lp - q)``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .wire import Array


def cross_entropy(lp: Array, weights: Array) -> tuple[float, Array]:
    """``-sum(w * lp)`` and its derivative by ``lp``."""
    return float(-(weights * lp).sum()), -weights


def importance_sampling(lp: Array, q: Array, adv: Array) -> tuple[float, Array]:
    """``-sum(r * A)`` and its derivative by ``lp``."""
    ratio = np.exp(lp - q)
    return float(-(ratio * adv).sum()), -ratio * adv


def ppo(lp: Array, q: Array, adv: Array, low: float = 0.8, high: float = 1.2) -> tuple[float, Array]:
    """``-sum(min(r * A, clip(r) * A))`` and its derivative by ``lp`` (nothing flows where the clip binds)."""
    ratio = np.exp(lp - q)
    clipped = np.clip(ratio, low, high)
    active = ratio * adv <= clipped * adv
    return float(-np.minimum(ratio * adv, clipped * adv).sum()), np.where(active, -ratio * adv, 0.0)


def cispo(lp: Array, q: Array, adv: Array, low: float = 0.0, high: float = 4.0) -> tuple[float, Array]:
    """``-sum(stopgrad(clip(r)) * lp * A)`` and its derivative by ``lp``."""
    clipped = np.clip(np.exp(lp - q), low, high)
    return float(-(clipped * lp * adv).sum()), -clipped * adv


def dro(lp: Array, q: Array, adv: Array, beta: float = 0.05) -> tuple[float, Array]:
    """``-sum(lp * A - beta / 2 * (lp - q)^2)`` and its derivative by ``lp``."""
    return float(-(lp * adv - 0.5 * beta * (lp - q) ** 2).sum()), -(adv - beta * (lp - q))


def gspo(lp: Array, q: Array, adv: Array, mask: Array, low: float, high: float) -> tuple[float, Array]:
    """PPO's minimum with the ratio of the whole sequence (mean over the mask) at each token."""
    ratio = float(np.exp((lp - q)[mask != 0].mean())) * np.ones_like(lp)
    clipped = np.clip(ratio, low, high)
    active = ratio * adv <= clipped * adv
    return float(-np.minimum(ratio * adv, clipped * adv).sum()), np.where(active, -ratio * adv, 0.0)


Weights = Mapping[str, Array]


@dataclass
class AdamW:
    """AdamW over named weights (Loshchilov and Hutter, arXiv 1711.05101), with a clip of the global gradient norm."""

    beta1: float = 0.9
    beta2: float = 0.95
    steps: int = 0

    def __post_init__(self) -> None:
        self._first: dict[str, Array] = {}
        self._second: dict[str, Array] = {}

    def step(
        self,
        weights: Weights,
        gradients: Weights,
        rate: float,
        eps: float = 1e-12,
        weight_decay: float = 0.0,
        clip: float = 0.0,
    ) -> dict[str, Array]:
        """The weights after one step."""
        self.steps += 1
        norm = float(np.sqrt(sum((gradient**2).sum() for gradient in gradients.values())))
        shrink = min(1.0, clip / norm) if clip > 0 and norm > 0 else 1.0
        after: dict[str, Array] = {}
        for name, weight in weights.items():
            gradient = gradients[name] * shrink
            first = self.beta1 * self._first.get(name, np.zeros_like(weight)) + (1 - self.beta1) * gradient
            second = self.beta2 * self._second.get(name, np.zeros_like(weight)) + (1 - self.beta2) * gradient**2
            self._first[name], self._second[name] = first, second
            mean = first / (1 - self.beta1**self.steps)
            spread = np.sqrt(second / (1 - self.beta2**self.steps))
            after[name] = weight * (1 - rate * weight_decay) - rate * mean / (spread + eps)
        return after


_SAFETENSORS_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_safetensors(body: bytes) -> dict[str, Array]:
    """The float tensors of a safetensors file as float64. Raises ValueError for a file that is not one."""
    if len(body) < 8:
        raise ValueError(f"a safetensors file starts with 8 bytes of length; this one has {len(body)} bytes")
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    tensors: dict[str, Array] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        raw = np.frombuffer(body[start:end], _SAFETENSORS_DTYPES[entry["dtype"]])
        values = (raw.astype("<u4") << 16).view("<f4") if entry["dtype"] == "BF16" else raw
        tensors[name] = values.reshape(entry["shape"]).astype(np.float64)
    return tensors
