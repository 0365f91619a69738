"""Soft targets: the most likely tokens of a teacher at each position."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

import tinker
from tinker_cookbook.exceptions import DataValidationError


async def top_k_rows(
    teacher: tinker.SamplingClient, sequence: tinker.ModelInput, k: int
) -> list[list[tuple[int, float]]]:
    """For each position after the first, the teacher's k most likely tokens with logprobs."""
    response = await teacher.sample(
        prompt=sequence,
        num_samples=1,
        sampling_params=tinker.SamplingParams(max_tokens=1),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=k,
    )
    rows = response.topk_prompt_logprobs
    if rows is None:
        raise DataValidationError("the server returned no top-k prompt logprobs")
    return [list(row or []) for row in rows[1:]]


def soft_target_datum(
    model_input: tinker.ModelInput, rows_N: Sequence[Sequence[tuple[int, float]]], weights_N: Any, k: int
) -> tinker.Datum:
    """Datum for cross_entropy with targets and weights of shape (N, K).

    The teacher's probabilities of each row are renormalised over the K tokens and multiplied by the position's weight,
    so that the loss is the forward cross entropy to the truncated teacher. Rows without tokens get weight 0.
    """
    position_weight = np.asarray(weights_N, dtype=np.float64)
    count = model_input.length
    if len(rows_N) != count or position_weight.shape != (count,):
        raise DataValidationError(f"{len(rows_N)} rows and {position_weight.shape} weights for {count} positions")
    targets = np.zeros((count, k), dtype=np.int64)
    weights = np.zeros((count, k), dtype=np.float32)
    for n, row in enumerate(rows_N):
        # The server fills missing entries with token 0 and a logprob of -99999.
        found = [(token, logprob) for token, logprob in row[:k] if logprob > -99_000]
        if not found or position_weight[n] == 0:
            continue
        logprobs = np.asarray([logprob for _, logprob in found], dtype=np.float64)
        probabilities = np.exp(logprobs - logprobs.max())
        probabilities /= probabilities.sum()
        targets[n, : len(found)] = [token for token, _ in found]
        weights[n, : len(found)] = probabilities * position_weight[n]
    return tinker.Datum(
        model_input=model_input,
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_numpy(targets),
            "weights": tinker.TensorData.from_numpy(weights),
        },
    )


def mean_entropy(weights: np.ndarray) -> float:
    """Mean entropy in nats of the rows of weights that are not zero."""
    sums = weights.sum(axis=1)
    rows = weights[sums > 0] / sums[sums > 0][:, None]
    if not len(rows):
        return 0.0
    safe = np.where(rows > 0, rows, 1.0)
    return float(-(rows * np.log(safe)).sum(axis=1).mean())


async def gather_limited(coroutines: Sequence[Any], limit: int) -> list[Any]:
    """``asyncio.gather`` with at most ``limit`` at once."""
    semaphore = asyncio.Semaphore(limit)

    async def run(coroutine: Any) -> Any:
        async with semaphore:
            return await coroutine

    return list(await asyncio.gather(*(run(coroutine) for coroutine in coroutines)))
