"""Budgets of a rollout: seconds (one deadline from which every wait is derived) and tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tinker_cookbook.swe.errors import DeadlineExceeded, SettingError


class Deadline:
    """A point in time that every wait of one job is derived from.

    Args:
        seconds: the budget, counted from now.
        budget: its name in messages, e.g. "job timeout (timeout in harbor.yaml)".
        clock: monotonic seconds; tests pass their own.
    """

    def __init__(self, seconds: float, budget: str, clock: Callable[[], float] = time.monotonic) -> None:
        if seconds <= 0:
            raise SettingError(f"{budget} is {seconds:g} s; give a number of seconds above 0")
        self.seconds = seconds
        self.budget = budget
        self._clock = clock
        self._end = clock() + seconds

    def remaining(self) -> float:
        """Seconds left, 0 when it has passed."""
        return max(0.0, self._end - self._clock())

    def slice(self, at_most: float) -> float:
        """Seconds that one wait may take: what is left, but not more than `at_most`."""
        return min(at_most, self.remaining())

    def exceeded(self, phase: str) -> DeadlineExceeded:
        """The error that says which budget ran out."""
        return DeadlineExceeded(phase, self.budget, self.seconds)

    def check(self, phase: str) -> None:
        """Raises DeadlineExceeded when nothing is left."""
        if self.remaining() <= 0:
            raise self.exceeded(phase)


@dataclass(frozen=True)
class TokenBudget:
    """Token limits of one model call.

    `max_input`: longest prompt; `max_output`: longest answer; `context`: longest prompt and answer together.
    """

    max_input: int
    max_output: int
    context: int

    def __post_init__(self) -> None:
        for name in ("max_input", "max_output", "context"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} is {getattr(self, name)}; give a number of tokens of at least 1")
        if self.max_input + self.max_output > self.context:
            raise SettingError(
                f"input {self.max_input} plus output {self.max_output} tokens exceed the context of {self.context}; "
                "lower max_input_tokens or max_output_tokens in harbor.yaml (or --max-tokens), "
                "or raise sequence_length in engine.yaml"
            )
