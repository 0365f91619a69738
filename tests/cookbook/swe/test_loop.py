"""PPO, PPO+KL and GRPO through the real client and server, with agents in memory: files, fields and log lines."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tinker_cookbook.swe.loop import LoopOptions, run_loop
from tinker_cookbook.swe.results import ResultsFolder
from tinker_cookbook.swe.session import Session
from tinker_cookbook.swe.settings import read_settings
from tinker_cookbook.swe.tasks import TaskSource

RUNTIME = Path(__file__).parents[2] / "e2e" / "scripted_runtime.py"
MODEL = Path(os.environ.get("TINKER_TEST_MODEL", Path.home() / ".cache/tinker-backend/models/SmolLM2-135M-Instruct"))
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not MODEL.is_dir(), reason="needs the folder of SmolLM2-135M-Instruct (TINKER_TEST_MODEL)"),
]


@dataclass
class Trial:
    reward: float | None
    evaluated: bool = True
    task_name: str = "t"
    exception: dict[str, Any] | None = None
    report: dict[str, Any] | None = None


class AgentInMemory:
    """Asks twice; its verifier gives 1 when the first answer was the right one, and cannot run for the word "broken"."""

    def __init__(self, service_type: Any) -> None:
        self._first = ""
        self.model_service = service_type(self._agent)

    async def _agent(self, service: Any) -> None:
        messages = [{"role": "user", "content": "Which word?"}]
        for _ in range(2):
            _, body = await service.chat(messages)
            answer = body["choices"][0]["message"]
            self._first = self._first or answer["content"]
            messages += [answer, {"role": "user", "content": "And now?"}]

    async def submit(self) -> None:
        return None

    async def wait(self, timeout: float) -> list[Trial]:
        return [Trial(float(self._first == "right"), evaluated=self._first != "broken")]

    async def export(self, folder: Path) -> None:
        return None

    async def close(self) -> None:
        return None


@pytest.fixture
def play(config_dir, memory_service, tmp_path, monkeypatch):
    """Runs a job over a script of first answers and returns result.json and the results folder."""
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    async def run(first_answers: list[str], **options: Any) -> tuple[dict[str, Any], Path]:
        script = tmp_path / "script.json"
        script.write_text(json.dumps({"turns": [first_answers, ["second"]]}))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        engine = {"pretrain": str(MODEL), "model_name": "Scripted", "sequence_length": 1000, "script": str(script)}
        (config_dir / "engine.yaml").write_text(yaml.safe_dump(engine))
        runtime = {
            "backend": {"port": port},
            "runtime": {"engine": "engine.yaml", "command": [sys.executable, str(RUNTIME)]},
        }
        (config_dir / "runtime.yaml").write_text(yaml.safe_dump(runtime))
        settings = read_settings(config_dir)
        results = ResultsFolder(tmp_path / "run", "demo")
        defaults: dict[str, Any] = {
            "mode": "grpo",
            "learning_rate": 1e-3,
            "lora_rank": 4,
            "kl_beta": 0.0,
            "num_steps": 1,
            "group_size": 4,
            "rollout_concurrency": 2,
        }
        factory = lambda _: AgentInMemory(memory_service)  # noqa: E731
        async with Session.open(settings, tmp_path / "jobs", factory, label="test") as session:
            result = await run_loop(
                session, results, LoopOptions(**(defaults | options)), TaskSource(["demo__task-1"], seed=0)
            )
        return result, results.path

    return run


async def test_grpo_trains_on_a_group_with_unequal_returns_and_leaves_its_files(play, caplog):
    with caplog.at_level(logging.INFO):
        result, folder = await play(["right", "wrong"], save_state="final")
    step = json.loads((folder / "step_000" / "step_result.json").read_text())
    assert sorted(step["group_returns"]) == [0, 0, 1, 1]
    assert step["group_advantages"] == [value - 0.5 for value in step["group_returns"]]
    assert step["rollouts_succeeded"] == 4 and step["skipped"] is None
    assert step["datums"] == 4  # two turns of a rollout are one datum, since the second prompt extends the first
    assert "loss:sum" in step["fwdbwd_metrics"] and "grad_norm" in step["optim_metrics"]
    assert result["steps"][0]["published_sampling_client"]
    rollout = json.loads((folder / "step_000" / "rollout_00.json").read_text())
    assert rollout["return"] == step["group_returns"][0] and rollout["advantage"] == step["group_advantages"][0]
    assert len(rollout["turns"]) == 2
    assert (folder / "step_000" / "rollout_03.txt").read_text().startswith("task demo__task-1")
    checkpoint = json.loads((folder / "checkpoint.json").read_text())
    assert checkpoint["name"] == "final" and checkpoint["path"].startswith("tinker://")
    text = caplog.text
    for line in (
        "Results dir:",
        "TINKER_SERVER_JOB",
        "Rollout done",
        "forward_backward done",
        "optim_step done",
        "Weights published to sampler",
    ):
        assert line in text


async def test_equal_returns_skip_the_step_and_say_so(play, caplog):
    with caplog.at_level(logging.INFO):
        result, _ = await play(["wrong"], num_steps=2)
    assert [step["skipped"] for step in result["steps"]] == ["all returns are 0, nothing to train on"] * 2
    assert result["updates"] == 0
    assert caplog.text.count("skipping step") == 2
    assert "forward_backward done" not in caplog.text


async def test_a_rollout_that_was_not_evaluated_is_left_out_and_never_counts_as_zero(play):
    result, folder = await play(["right", "broken", "wrong", "right"])
    step = result["steps"][0]
    assert sorted(step["group_returns"]) == [0, 1, 1] and step["rollouts_succeeded"] == 3
    assert sum(step["group_advantages"]) == pytest.approx(0)
    (index,) = step["rollout_errors"]
    rollout = json.loads((folder / "step_000" / f"rollout_{int(index):02d}.json").read_text())
    assert rollout["return"] is None and rollout["advantage"] is None and rollout["evaluated"] is False


async def test_ppo_trains_one_rollout_against_the_baseline_on_as_many_turns_as_asked(play):
    result, folder = await play(["wrong"], mode="ppo", group_size=1, max_train_transitions=1)
    assert result["reward"] == 0 and result["steps"][0]["group_advantages"] == [-0.5]
    assert result["train_elapsed"] > 0 and result["published_sampling_client"]
    assert result["steps"][0]["train_tokens"] == 2  # "wrong" and the end token of the first turn only
    assert "wrong" in (folder / "trajectory.txt").read_text()
    assert (
        json.loads((folder / "result.json").read_text())["fwdbwd_metrics"]["loss:sum"]
        == result["fwdbwd_metrics"]["loss:sum"]
    )


async def test_ppo_without_any_advantage_says_that_it_skips_the_train_step(play, caplog):
    with caplog.at_level(logging.INFO):
        result, _ = await play(["wrong"], mode="ppo", group_size=1, reward_baseline=0.0)
    assert "skipping train step" in caplog.text and "nothing to train on" in caplog.text
    assert result["published_sampling_client"] is None


async def test_ppo_with_kl_reports_the_distance_to_the_base_model(play):
    result, _ = await play(["right"], mode="ppo-kl", group_size=1, kl_beta=0.05)
    step = result["steps"][0]
    assert step["kl_policy_base"] is not None
    assert step["skipped"] is None


async def test_a_family_is_trained_until_enough_steps_had_something_to_learn(play):
    # Step 0 gets four wrong answers, step 1 a mixed group; the job ends there although 5 steps were allowed.
    result, _ = await play(["wrong"] * 4 + ["right", "wrong"] * 8, num_steps=5, stop_after_updates=1)
    assert [step["skipped"] is None for step in result["steps"]] == [False, True]
