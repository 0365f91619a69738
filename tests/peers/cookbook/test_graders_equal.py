"""Graders of both cookbooks on the same generated answers: the same judgements, except the listed ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.timeout(1200)]
COOKBOOK = Path(__file__).parents[2] / "cookbook"
KINDS = {
    "math": 4400,
    "gsm8k": 500,
    "arithmetic": 800,
    "code": 500,
    "rubric": 170,
    "shorter": 170,
    "guess_number": 400,
}
"""Kinds of graders, and how many answers each must have been asked about at least."""


@pytest.fixture(scope="module")
def judgements(observed: Callable[[str], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Judgements of the official cookbook and of this one."""
    return observed("grader_observations.py")


def meant(observation: str, theirs: Any, ours: Any) -> bool:
    """Differences that docs/cookbook/differences.md lists: the same number in another form, and a framed answer."""
    if observation.startswith("grade"):
        return (theirs, ours) == (False, True) or observation == r"grade '\\frac11' '1^{1}'"
    return observation.startswith("answer") and (
        r"\\fbox" in observation or (theirs, ours) == ([True, False], [True, True])
    )


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_answers_are_judged_like_in_the_official_cookbook(kind: str, judgements: tuple[Any, Any]) -> None:
    theirs, ours = (side[kind] for side in judgements)
    assert list(theirs) == list(ours) and len(theirs) >= KINDS[kind]
    other = {name: (theirs[name], ours[name]) for name in theirs if theirs[name] != ours[name]}
    unmeant = {name: pair for name, pair in other.items() if not meant(name, *pair)}
    assert not unmeant, (len(unmeant), list(unmeant.items())[:10])
    assert len(other) <= 0.03 * len(theirs)
