"""Top-k log probabilities: one row a position, masked cells where fewer than k candidates exist."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MASK_LOGPROB = -99999.0


@dataclass(frozen=True)
class TopkLogprobs:
    """``token_ids`` int32 and ``logprobs`` float32, both [positions, k]."""

    token_ids: np.ndarray
    logprobs: np.ndarray


def topk_to_lists(topk: TopkLogprobs) -> list[list[tuple[int, float]] | None]:
    """Rows of (token id, logprob); None for a row without any candidate."""
    rows: list[list[tuple[int, float]] | None] = []
    for ids, logprobs in zip(topk.token_ids.tolist(), topk.logprobs.tolist(), strict=True):
        row = [(token, value) for token, value in zip(ids, logprobs, strict=True) if value != MASK_LOGPROB]
        rows.append(row or None)
    return rows
