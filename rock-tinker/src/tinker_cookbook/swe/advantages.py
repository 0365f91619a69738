"""Advantages of rollouts, and the KL penalty on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from tinker_cookbook.swe.sequences import TokenSequence

Normalisation = Literal["mean", "std"]


def group_advantages(returns_G: Sequence[float], normalisation: Normalisation = "mean") -> list[float]:
    """Advantages of a group of rollouts of one task (GRPO).

    mean: return − mean (Dr. GRPO, arXiv:2503.20783). std: the same divided by the group's standard deviation
    (arXiv:2402.03300). Equal returns give zeros.
    """
    if not returns_G:
        return []
    mean = sum(returns_G) / len(returns_G)
    centred = [value - mean for value in returns_G]
    if normalisation == "mean" or not any(centred):
        return centred
    std = math.sqrt(sum(value * value for value in centred) / len(centred))
    return [value / (std + 1e-6) for value in centred]


def spread(sequence: TokenSequence, advantage: float) -> list[float]:
    """The rollout's advantage on each sampled token, 0 on the others."""
    return [advantage if chosen else 0.0 for chosen in sequence.sampled]


def penalise_kl(
    sequences: Sequence[TokenSequence],
    advantages: Sequence[Sequence[float]],
    reference_logprobs: Sequence[Sequence[float]],
    beta: float,
) -> tuple[list[list[float]], float]:
    """Moves advantages towards tokens that the reference model finds likely.

    With d = logprob − reference logprob of a sampled token and d̄ its mean over all sampled tokens given here, a token's
    advantage grows by β·(d̄ − d). The mean is taken out so that the penalty moves probability between tokens and does
    not reward or punish the rollout as a whole.

    Returns:
        The new advantages, one list a sequence, and d̄ (an estimate of KL(policy ‖ reference) a token).
    """
    gaps = [
        [
            own - reference if chosen else 0.0
            for own, reference, chosen in zip(seq.logprobs, ref, seq.sampled, strict=True)
        ]
        for seq, ref in zip(sequences, reference_logprobs, strict=True)
    ]
    count = sum(sum(sequence.sampled) for sequence in sequences)
    if count == 0:
        return [list(row) for row in advantages], 0.0
    mean = sum(map(sum, gaps)) / count
    penalised = [
        [
            value + beta * (mean - gap) if chosen else value
            for value, gap, chosen in zip(row, gap_row, sequence.sampled, strict=True)
        ]
        for row, gap_row, sequence in zip(advantages, gaps, sequences, strict=True)
    ]
    return penalised, mean
