"""A run that is stopped and resumed ends with the metrics of one that was not."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from recipe_backend import RecipeBackend, metric_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
STEPS = 6
SUMS = [(x, y, total) for x in range(3) for y in range(3) for total in range(5)]
COMMON: dict[str, Any] = {"renderer_name": "qwen3_instruct", "log_path": "run", "lora_rank": 4, "save_every": 2}
RUNS: dict[str, dict[str, Any]] = {
    "math_rl.train": {
        "groups_per_batch": 4,
        "group_size": 8,
        "max_tokens": 3,
        "largest": 3,
        "eval_every": 0,
        "learning_rate": 1e-3,
        "sampling_seed": 5,
        "max_steps": STEPS,
    },
    "chat_sl.train": {
        "dataset": "example",
        "batch_size": 8,
        "max_length": 128,
        "test_size": 8,
        "eval_every": 3,
        "learning_rate": 1e-2,
        "max_steps": STEPS,
    },
}
# Times differ, and cached tokens depend on what else the server has seen.
LEFT_OUT = ("time/", "tokens/prefill", "tokens/cumulative/prefill", "env/all/total_cached", "tokens/discarded")


def comparable(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if not key.startswith(LEFT_OUT)}
        for row in metric_rows(folder / "run")
    ]


def stop_after_step(
    backend: RecipeBackend, recipe: str, folder: Path, settings: dict[str, Any], step: int, number: signal.Signals
) -> int:
    """Starts a run and sends it a signal as soon as the row of a step is there. Returns its exit code."""
    process = backend.start_recipe(recipe, folder, settings)
    metrics = folder / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.is_file() and metrics.read_text().count("\n") > step):
        assert process.poll() is None and time.monotonic() < deadline, (folder / "output.log").read_text()[-3000:]
        time.sleep(0.005)
    process.send_signal(number)
    return process.wait(60)


@pytest.fixture(scope="module")
def answers_with_digits(recipe_backend: RecipeBackend, tmp_path_factory: pytest.TempPathFactory) -> str:
    """State of a model that answers sums with random digits, so that rewards differ; both runs begin with it."""
    folder = tmp_path_factory.mktemp("digits")
    rows = [
        [("user", "What is 4 + 5?"), ("assistant", "9"), ("user", f"What is {x} + {y}?"), ("assistant", str(total))]
        for x, y, total in SUMS
    ]
    messages = [{"messages": [{"role": role, "content": text} for role, text in row]} for row in rows]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in messages))
    settings = {**COMMON, "model_name": recipe_backend.model, "dataset": "sums.jsonl", "test_size": 0, "batch_size": 15}
    settings |= {"num_epochs": 8, "learning_rate": 3e-3, "lr_schedule": "constant", "eval_every": 0, "save_every": 0}
    settings["seed"] = 1  # of the adapter; some first weights lead to states where rounding grows by steps of Adam
    recipe_backend.run_recipe("chat_sl.train", folder, settings)
    return str(json.loads((folder / "run" / "checkpoints.jsonl").read_text().splitlines()[-1])["state_path"])


@pytest.mark.parametrize(("recipe", "number"), [("chat_sl.train", signal.SIGTERM), ("math_rl.train", signal.SIGKILL)])
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(
    recipe: str, number: signal.Signals, recipe_backend: RecipeBackend, answers_with_digits: str, tmp_path: Path
) -> None:
    start = {"model_name": recipe_backend.model, "load_checkpoint_path": answers_with_digits}
    settings = {**COMMON, **RUNS[recipe], **start}
    recipe_backend.run_recipe(recipe, tmp_path / "whole", settings)
    code = stop_after_step(recipe_backend, recipe, tmp_path / "struck", settings, 3, number)
    if number is signal.SIGTERM:
        last = (tmp_path / "struck" / "output.log").read_text().splitlines()[-2:]
        assert code == 143 and "goes on from checkpoint 00000" in last[0] and last[1] == "terminated"
    before = metric_rows(tmp_path / "struck" / "run")
    resumed = {**settings, "behavior_if_log_dir_exists": "resume"}
    recipe_backend.run_recipe(recipe, tmp_path / "struck", resumed)
    whole, struck = comparable(tmp_path / "whole"), comparable(tmp_path / "struck")
    assert len(before) < len(whole), "the run ended before it was killed"
    assert [row["step"] for row in struck] == [row["step"] for row in whole]
    for expected, found in zip(whole, struck, strict=True):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert found[key] == pytest.approx(value, rel=1e-4, abs=1e-6), (expected["step"], key)
    values = [row.get("train_mean_nll", row.get("env/all/reward/total")) for row in whole]
    assert len(set(values)) > 2, "the model did not move: the comparison would say nothing"
