"""Each loss is a pure function of the learner's logprobs, the datum's inputs and the config; always a plain sum.

lp: learner logprob of the target, q: ``logprobs`` of the sampler, A: ``advantages``, r = exp(lp - q).
Thresholds are absolute probability ratios. Shapes: (n,) over positions, (n, K) for cross_entropy with alternatives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Inputs = Mapping[str, Tensor]
Config = Mapping[str, float | str]
Loss = Callable[[Tensor, Inputs, Config], Tensor]
"""(logprobs, inputs, config with all defaults filled in) -> scalar"""


def cross_entropy(lp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-sum w lp; no weights: w = 1."""
    weights = inputs.get("weights")
    return -lp.sum() if weights is None else -(weights * lp).sum()


def importance_sampling(lp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-sum r A."""
    return -(_ratio(lp, inputs) * inputs["advantages"]).sum()


def ppo(lp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-sum min(r A, clamp(r, lo, hi) A) (arXiv 1707.06347)."""
    return _clipped(_ratio(lp, inputs), inputs, config)


def cispo(lp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-sum stopgrad(clamp(r, lo, hi)) lp A (arXiv 2506.13585)."""
    low, high = _thresholds(inputs, config, lp)
    weight = torch.clamp(_ratio(lp, inputs), low, high).detach()
    return -(weight * lp * inputs["advantages"]).sum()


def dro(lp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-sum (lp A - beta/2 (lp - q)^2) (arXiv 2405.19107)."""
    beta = float(config["beta"])
    return -(lp * inputs["advantages"] - 0.5 * beta * (lp - inputs["logprobs"]).square()).sum()


def gspo(lp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """GSPO-token (arXiv 2507.18071) of one datum: r_t = s exp(lp - sg(lp)), s = exp(mean over the mask of (lp - q))."""
    mask = (inputs["sequence_ratio_mask"] != 0).to(lp.dtype)
    frozen = lp.detach()
    mean = ((frozen - inputs["logprobs"]) * mask).sum() / mask.sum().clamp_min(1.0)
    return _clipped(mean.exp() * (lp - frozen).exp(), inputs, config)


def truncated_importance_sampling(lp: Tensor, inputs: Inputs, config: Config) -> Tensor:
    """-sum stopgrad(min(r, limit)) lp A + kl_coeff/2 sum m (lp - q)^2.

    The second term keeps the learner near the sampler. m is 1 on sampled tokens: on those of the prompt, which carry
    neither a logprob nor an advantage, it must not pull.
    """
    q, advantages = inputs["logprobs"], inputs["advantages"]
    weight = _ratio(lp, inputs).clamp(max=float(config["ratio_limit"])).detach()
    sampled = ((q != 0) | (advantages != 0)).to(lp.dtype)
    divergence = 0.5 * (sampled * (lp - q).square()).sum()
    return -(weight * lp * advantages).sum() + float(config["kl_coeff"]) * divergence


LOSS_FUNCTIONS: Mapping[str, Loss] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "dro": dro,
    "gspo": gspo,
    "truncated_importance_sampling": truncated_importance_sampling,
}
POSITION_LOCAL = frozenset(
    {"cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "truncated_importance_sampling"}
)
"""Losses that are sums of terms of one position each, so any slice of positions may be differentiated alone."""


def _ratio(lp: Tensor, inputs: Inputs) -> Tensor:
    """r, and 1 where the advantage is 0: there it has no effect, and one that overflows would make 0 times infinity."""
    gap = lp - inputs["logprobs"]
    return torch.where(inputs["advantages"] != 0, gap, torch.zeros_like(gap)).exp()


def _thresholds(inputs: Inputs, config: Config, like: Tensor) -> tuple[Tensor, Tensor]:
    low, high = inputs.get("clip_low_threshold"), inputs.get("clip_high_threshold")
    return (
        like.new_tensor(float(config["clip_low_threshold"])) if low is None else low,
        like.new_tensor(float(config["clip_high_threshold"])) if high is None else high,
    )


def _clipped(ratio: Tensor, inputs: Inputs, config: Config) -> Tensor:
    low, high = _thresholds(inputs, config, ratio)
    advantages = inputs["advantages"]
    return -torch.minimum(ratio * advantages, torch.clamp(ratio, low, high) * advantages).sum()
