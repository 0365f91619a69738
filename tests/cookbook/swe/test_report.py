"""The page of a rollout and a training run: complete, self-contained, and safe against what agents write."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tinker_cookbook.swe import SettingError
from tinker_cookbook.swe.report import build, main

EVIL = "<script>alert(1)</script> & <b>"


def turn(index: int, messages: list[dict[str, str]], answer: str) -> dict[str, object]:
    return {
        "index": index,
        "messages": messages,
        "answer": {"role": "assistant", "content": answer},
        "finish_reason": "stop",
        "prompt_tokens": [1, 2, 3],
        "completion_tokens": [4, 5],
        "logprobs": [-0.5, -1.5],
        "reused_tokens": 2 * index,
        "temperature": 1.0,
        "seconds": 1.25,
    }


@pytest.fixture
def rollout_run(tmp_path: Path) -> Path:
    folder = tmp_path / "rollout-1" / "results" / "demo"
    folder.mkdir(parents=True)
    first = [{"role": "user", "content": f"do it {EVIL}"}]
    second = [*first, {"role": "assistant", "content": "looking"}, {"role": "user", "content": "observed"}]
    turns = [turn(0, first, "looking"), turn(1, second, "fixed")]
    summary = {
        "task_id": "demo__task-1",
        "reward": 1.0,
        "episode_done": True,
        "turns_used": 2,
        "time_seconds": 61.0,
        "error": None,
    }
    report = {"demo__task-1": {"resolved": True, "tests_status": {"FAIL_TO_PASS": {"success": ["a"], "failure": []}}}}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "trajectory.json").write_text(json.dumps({"turns": turns}))
    (folder / "report.json").write_text(json.dumps(report))
    return tmp_path / "rollout-1"


@pytest.fixture
def training_run(tmp_path: Path) -> Path:
    folder = tmp_path / "grpo-1" / "results" / "demo"
    (folder / "step_001").mkdir(parents=True)
    empty = {
        "group_advantages": [], "fwdbwd_metrics": None, "train_tokens": 0, "rollouts_started": 2, "graded_rollouts": [0, 1],
    }  # fmt: skip
    steps = [
        {**empty, "step": 0, "task_id": "mini-1", "group_returns": [0, 0], "skipped": "all returns are 0"},
        {
            "step": 1, "task_id": "mini-2", "group_returns": [1, 0], "group_advantages": [0.5, -0.5], "graded_rollouts": [0, 1],
            "rollouts_started": 3, "skipped": None, "train_tokens": 9, "fwdbwd_metrics": {"loss:sum": -1.25},
        },
    ]  # fmt: skip
    options = {"group_size": 2, "lora_rank": 0, "learning_rate": 1e-4, "loss_fn": "ppo"}
    (folder / "result.json").write_text(json.dumps({"mode": "grpo", "steps": steps, "options": options}))
    for index, (reward, advantage) in enumerate([(1, 0.5), (0, -0.5), (None, None)]):
        turns = [turn(0, [{"role": "user", "content": "make a file"}], f"answer {index}")]
        data = {"reward": reward, "advantage": advantage, "turns": turns}
        (folder / "step_001" / f"rollout_{index:02d}.json").write_text(json.dumps(data))
    return tmp_path / "grpo-1"


class Balance(HTMLParser):
    """Fails on an element that is not closed in order."""

    void = {"meta", "circle", "rect", "line", "br"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open.pop() == tag


def test_the_page_shows_turns_rewards_advantages_and_losses_and_loads_nothing(rollout_run, training_run):
    page = build(rollout_run, training_run, [("model", "Tiny")])
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    for text in (
        "demo__task-1",
        "FAIL_TO_PASS",
        "skipped: all returns are 0",
        "advantage +0.5",
        "-1.25",
        "not evaluated",
        "Tiny",
    ):
        assert text in page
    assert page.count("observed") == 1  # a message is shown in the turn that brought it, once
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)


def test_what_an_agent_wrote_cannot_become_markup(rollout_run):
    page = build(rollout_run, None)
    assert "<script>" not in page and "&lt;script&gt;alert(1)&lt;/script&gt; &amp;" in page


def test_a_run_without_results_is_named(tmp_path, capsys):
    with pytest.raises(SettingError, match=r"client\.log"):
        build(tmp_path, None)
    assert main(["--out", str(tmp_path / "page.html")]) == 2
    assert "give --rollout" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
