"""KL terms: between sampler and trainer, before and after a step, and to a reference policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

import tinker
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.utils import trace
from tinker_cookbook.utils.cost_estimation import TokenUsage


def array(datum: tinker.Datum, key: str) -> np.ndarray:
    """A loss input as a flat float64 array."""
    return np.asarray(datum.loss_fn_inputs[key].to_numpy(), dtype=np.float64)


def full_sequence(datum: tinker.Datum) -> tinker.ModelInput:
    """Input tokens and the last target: everything that was seen or sampled."""
    targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
    return datum.model_input.append_int(int(np.asarray(targets).reshape(len(targets), -1)[-1, 0]))


@trace.scope
async def score_sequences(
    sampling_client: tinker.SamplingClient, sequence_inputs: Sequence[tinker.ModelInput]
) -> tuple[list[list[float | None]], TokenUsage]:
    """Logprobs of each sequence's tokens at temperature 1 (None for the first), and the tokens used."""
    logprobs_D, usage = await _score_and_count(sampling_client, sequence_inputs)
    return [[None, *logprobs.tolist()] for logprobs in logprobs_D], usage


async def score_tokens(
    sampling_client: tinker.SamplingClient, sequence_inputs: Sequence[tinker.ModelInput]
) -> list[np.ndarray]:
    """Logprobs of each sequence's tokens after the first, at temperature 1."""
    return (await _score_and_count(sampling_client, sequence_inputs))[0]


async def _score_and_count(
    sampling_client: tinker.SamplingClient, sequence_inputs: Sequence[tinker.ModelInput]
) -> tuple[list[np.ndarray], TokenUsage]:
    async def score(sequence: tinker.ModelInput) -> tuple[np.ndarray, TokenUsage]:
        response = await sampling_client.sample(
            prompt=sequence,
            num_samples=1,
            sampling_params=tinker.SamplingParams(max_tokens=1),
            include_prompt_logprobs=True,
        )
        logprobs = response.prompt_logprobs
        if logprobs is None:
            raise RuntimeError("the server returned no prompt logprobs")
        cached = int(getattr(response, "prompt_cache_hit_tokens", 0) or 0)
        sampled = sum(len(sequence.tokens) for sequence in response.sequences)
        usage = TokenUsage(sampled=sampled, prefill_cached=cached, prefill_uncached=sequence.length - cached)
        return np.asarray([0.0 if value is None else value for value in logprobs[1:]], dtype=np.float64), usage

    scored = await asyncio.gather(*(score(sequence) for sequence in sequence_inputs))
    return [logprobs for logprobs, _ in scored], sum((usage for _, usage in scored), TokenUsage())


def compute_kl_sample_train(data_D: list[tinker.Datum], training_logprobs_D: Sequence[Any]) -> dict[str, float]:
    """How far the trainer is from the sampler on sampled tokens.

    With q the sampler's and p the trainer's logprob: v1 = mean(q − p), v2 = mean((q − p)²) / 2; entropy = −mean(q).
    """
    q, p = [], []
    for datum, training in zip(data_D, training_logprobs_D, strict=True):
        mask = array(datum, "mask") > 0
        q.append(array(datum, "logprobs")[mask])
        p.append(_numpy(training)[mask])
    return _kl_metrics(np.concatenate(q), np.concatenate(p), "optim/kl_sample_train", with_entropy=True)


@trace.scope
async def compute_post_kl(
    data_D: list[tinker.Datum], post_sampling_client: tinker.SamplingClient
) -> tuple[dict[str, float], TokenUsage]:
    """The same two numbers for the sampler before and after the step, ``kl_pre_post_v1`` and ``_v2``; and the tokens used."""
    after_D, usage = await _score_and_count(post_sampling_client, [full_sequence(datum) for datum in data_D])
    pre, post = [], []
    for datum, after in zip(data_D, after_D, strict=True):
        mask = array(datum, "mask") > 0
        pre.append(array(datum, "logprobs")[mask])
        post.append(after[mask])
    return _kl_metrics(np.concatenate(pre), np.concatenate(post), "kl_pre_post", with_entropy=False), usage


def _kl_metrics(q: np.ndarray, p: np.ndarray, prefix: str, with_entropy: bool) -> dict[str, float]:
    if q.size == 0:
        return {}
    difference = q - p
    out = {f"{prefix}_v1": float(difference.mean()), f"{prefix}_v2": float(0.5 * (difference**2).mean())}
    if with_entropy:
        out["optim/entropy"] = float(-q.mean())
    return out


@trace.scope
async def incorporate_kl_penalty(
    data_D: list[tinker.Datum],
    base_sampling_client: tinker.SamplingClient,
    kl_penalty_coef: float,
    kl_discount_factor: float,
) -> tuple[dict[str, float], TokenUsage]:
    """Add a penalty for leaving a reference policy to the advantages, in place. Returns ``kl_policy_base`` and the tokens
    that the reference took.

    d_t = mask_t·(sampled logprob − reference logprob); d̄ = Σd / Σmask over the batch;
    advantage_t += coef·mask_t·(d̄ − d_t), where a discount γ > 0 first replaces the added term by its discounted
    future sum.
    """
    reference_D, usage = await _score_and_count(base_sampling_client, [full_sequence(datum) for datum in data_D])
    mask_D = [array(datum, "mask") for datum in data_D]
    difference_D = [
        mask * (array(datum, "logprobs") - reference)
        for datum, reference, mask in zip(data_D, reference_D, mask_D, strict=True)
    ]
    total = sum(float(mask.sum()) for mask in mask_D)
    mean = sum(float(difference.sum()) for difference in difference_D) / total if total else 0.0
    for datum, difference, mask in zip(data_D, difference_D, mask_D, strict=True):
        added = kl_penalty_coef * mask * (mean - difference)
        if kl_discount_factor > 0:
            added = discounted_future_sum_vectorized(added, kl_discount_factor)
        add_to_advantages(datum, added)
    return {"kl_policy_base": mean}, usage


def add_to_advantages(datum: tinker.Datum, added: np.ndarray) -> None:
    """Change the advantages of a datum in place."""
    new = (array(datum, "advantages") + added).astype(np.float32)
    datum.loss_fn_inputs["advantages"] = tinker.TensorData.from_numpy(new)


def discounted_future_sum_vectorized(x: Any, gamma: float) -> Any:
    """y_t = x_t + γ·y_{t+1}, along the last axis. Of a tensor's kind and type if x is a tensor, else an array.

    Raises:
        ConfigurationError: gamma is outside [0, 1].
    """
    if not 0.0 <= gamma <= 1.0:
        raise ConfigurationError(f"kl_discount_factor={gamma} must lie between 0 and 1")
    values = _numpy(x)
    out = np.zeros_like(values)
    running = np.zeros(values.shape[:-1])
    for t in range(values.shape[-1] - 1, -1, -1):
        running = values[..., t] + gamma * running
        out[..., t] = running
    if hasattr(x, "detach"):
        import torch

        return torch.as_tensor(out, dtype=x.dtype, device=x.device)
    return out


SAMPLING_TIME = "time/trajectory_group_worker_loop/total"
"""Metric of a wrapped group: the seconds that it took to sample."""


def compute_sampling_client_metrics(wrapped_trajectory_groups: Sequence[Any]) -> dict[str, Any]:
    """Largest, smallest and mean step of the samplers of groups, and of the seconds that sampling them took."""
    if not wrapped_trajectory_groups:
        return {}
    columns = {
        "sampling_client/step": [group.sampling_client_step for group in wrapped_trajectory_groups],
        "time/sampling_time": [group.metrics[SAMPLING_TIME] for group in wrapped_trajectory_groups],
    }
    out: dict[str, Any] = {}
    for name, values in columns.items():
        out |= {f"{name}_max": max(values), f"{name}_min": min(values), f"{name}_mean": float(np.mean(values))}
    return out


def staleness_metrics(step: int, sampler_steps_P: Sequence[int]) -> dict[str, float]:
    """How many optimizer steps old the sampler of each group was."""
    staleness = [step - sampler for sampler in sampler_steps_P]
    if not staleness:
        return {}
    return {
        "async/staleness_max": float(max(staleness)),
        "async/staleness_min": float(min(staleness)),
        "async/staleness_mean": float(np.mean(staleness)),
    }


def _numpy(values: Any) -> np.ndarray:
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    elif hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=np.float64)
