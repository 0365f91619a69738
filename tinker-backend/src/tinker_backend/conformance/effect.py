"""What a training step did, seen from outside.

AdamW whose eps dwarfs the gradient takes a first step of ``-(rate / eps) * gradient``. Where a server gives weights
away, the gradient is read off them to the last digit; elsewhere it shows in how the logprobs of known tokens move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .probe import check
from .wire import Array


@dataclass(frozen=True)
class Effect:
    """The displacement of all weights (``exact``), or the movement of many logprobs."""

    vector: Array
    exact: bool

    @property
    def size(self) -> float:
        """Its L2 norm."""
        return float(np.linalg.norm(self.vector))

    @property
    def slack(self) -> float:
        """Relative difference that rounding explains: logprobs of low-precision models are coarse."""
        return 0.02 if self.exact else 0.25

    @property
    def seen_in(self) -> str:
        """For details: what was looked at."""
        return "weights" if self.exact else "logprobs"


def same_step(left: Effect, right: Effect, what: str) -> str:
    """Checks that two steps are the same step."""
    check(right.size > 0, f"{what}: the step moves nothing, so nothing is tested")
    difference = float(np.linalg.norm(left.vector - right.vector)) / right.size
    check(difference <= right.slack, f"{what}: the steps differ by {difference:.1%} of their size ({right.seen_in})")
    return f"{what}: differ by {difference:.1g} of the step ({right.seen_in})"


def no_step(effect: Effect, reference: Effect, what: str) -> str:
    """Checks that nothing moved, where ``reference`` is a step that does move."""
    check(reference.size > 0, f"{what}: the reference step moves nothing, so nothing is tested")
    share = effect.size / reference.size
    check(share <= reference.slack / 10, f"{what}: something moved, {share:.1%} of a real step ({reference.seen_in})")
    return f"{what}: {share:.1g} of a real step ({reference.seen_in})"


def growth(larger: Effect, smaller: Effect, wanted: float) -> str:
    """Checks that one step is ``wanted`` times another."""
    check(smaller.size > 0, "the step moves nothing, so nothing is tested")
    ratio = float(larger.vector @ smaller.vector) / smaller.size**2
    slack = 0.01 if smaller.exact else 0.15
    check(abs(ratio / wanted - 1) <= slack, f"the step grows by {ratio:.3f}, not by {wanted:g} ({smaller.seen_in})")
    return f"the step grows by {ratio:.4f} ({smaller.seen_in})"
