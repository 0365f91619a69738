"""The RL loop asks the same of the trainer in each mode as that of the official cookbook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_gradient_calls_and_optimizer_steps_are_those_of_the_official_loop(
    observed: Callable[[str], tuple[Any, Any]],
) -> None:
    theirs, ours = observed("loop_observations.py")
    assert len(theirs) == 8 and theirs["async stream"] == [2, 2, "step"] * 4
    assert ours == theirs
