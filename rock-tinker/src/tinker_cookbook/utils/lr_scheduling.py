"""Learning rate schedules as multipliers of the base rate."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from tinker_cookbook.exceptions import ConfigurationError

LRSchedule: TypeAlias = Literal["linear", "cosine", "constant"]


def compute_schedule_lr_multiplier(lr_schedule: LRSchedule, step: int, total_steps: int) -> float:
    """Multiplier at a step: linear ``1 - step/total``, cosine ``(1 + cos(pi * step/total)) / 2``, constant 1."""
    progress = min(step / max(total_steps, 1), 1.0)
    if lr_schedule == "linear":
        return 1.0 - progress
    if lr_schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    if lr_schedule == "constant":
        return 1.0
    raise ConfigurationError(f"lr_schedule={lr_schedule!r} is unknown; use linear, cosine or constant")
