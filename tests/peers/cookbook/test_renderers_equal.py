"""Renderers of both cookbooks on the same conversations and texts: the same answers, except the listed ones."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.timeout(1200)]
COOKBOOK = Path(__file__).parents[2] / "cookbook"


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, COOKBOOK / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def answers(observed: Callable[[str], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Answers of the official cookbook and of this one."""
    return observed("renderer_observations.py")


def test_renderers_answer_like_the_official_ones(answers: tuple[Any, Any]) -> None:
    theirs, ours = answers
    meant = _load("renderer_differences").meant
    assert list(theirs) == list(ours)
    other, compared = {}, 0
    for name in theirs:
        for observation, answer in theirs[name].items():
            if answer == "!" or meant(name, observation):  # refused there, or listed with a reason
                continue
            compared += 1
            if ours[name][observation] != answer:
                other[f"{name}: {observation}"] = (answer, ours[name][observation])
    assert not other, (len(other), list(other)[:40], list(other.values())[:3])
    assert compared > 40_000


def test_every_listed_difference_is_one(answers: tuple[Any, Any]) -> None:
    theirs, ours = answers
    module = _load("renderer_differences")
    for names, observations, reason in module.DIFFERENCES:
        rows = [
            (name, key)
            for name in theirs
            for key in theirs[name]
            if module.re.fullmatch(names, name) and module.re.fullmatch(observations, key)
        ]
        assert any(theirs[name][key] != ours[name][key] for name, key in rows), (names, reason)


def test_the_record_holds_the_answers_of_the_official_renderers(answers: tuple[Any, Any]) -> None:
    theirs, _ = answers
    differences, observe = _load("renderer_differences"), _load("renderer_observations")
    record = json.loads((COOKBOOK / "data" / "renderer_answers.json").read_text())
    for name, line in record["answers"].items():
        for index, key in enumerate(record["observations"]):
            answer = theirs[name].get(key, "!")
            known = answer != "!" and not differences.meant(name, key)
            assert line[3 * index : 3 * index + 3] == (observe.digest(answer) if known else "---"), (name, key)
