"""Sweeps: a run for every combination, what is skipped, what a failure leaves, and the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import chz
import pytest

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.chat_sl import train
from tinker_cookbook.recipes.chat_sl.sweep import cli, grid, results, runner


def test_a_grid_is_every_combination() -> None:
    assert grid.grid({"a": [1, 2]}, b=["x", "y"]) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert grid.grid() == [{}]
    assert grid.default_run_name({"learning_rate": 1e-4, "model_name": "Qwen/Qwen3-8B"}).count("/") == 0
    assert grid.default_run_name({"learning_rate": 1e-5}) != grid.default_run_name({"learning_rate": 1e-4})


@pytest.fixture
def base(fake_service: Any, universal_tokenizer_path: str) -> train.CLIConfig:
    return train.CLIConfig(
        model_name=universal_tokenizer_path,
        renderer_name="qwen3_instruct",
        dataset="example",
        batch_size=8,
        max_length=96,
        max_steps=2,
        eval_every=0,
    )


def sweep(base: train.CLIConfig, folder: Path, main_fn: Any = train.cli_main, **axes: Any) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(1) as executor:
        return runner.run(main_fn, base, sweep_dir=str(folder), executor=executor, **axes)


def test_each_combination_has_a_run_of_its_own_and_a_row(base: train.CLIConfig, tmp_path: Path) -> None:
    rows = sweep(base, tmp_path, learning_rate=[1e-3, 1e-1], lora_rank=[4, 8])
    assert [(row["learning_rate"], row["lora_rank"], row["status"]) for row in rows] == [
        (1e-3, 4, "completed"), (1e-3, 8, "completed"), (1e-1, 4, "completed"), (1e-1, 8, "completed"),
    ]  # fmt: skip
    assert len({row["log_path"] for row in rows}) == 4
    assert [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()] == rows
    found = results.collect(tmp_path, config_keys=["learning_rate", "lora_rank"])
    assert sorted((row["learning_rate"], row["lora_rank"]) for row in found) == sorted(
        (row["learning_rate"], row["lora_rank"]) for row in rows
    )
    assert all({"run", "train_mean_nll", "step"} <= set(row) and "dataset_builder" not in row for row in found)
    shown = results.table(found, "train_mean_nll").splitlines()
    assert len(shown) == 4 and shown[1].split() == ["learning_rate", "rank", "4", "rank", "8"]
    assert "*" not in shown[2] and "*" in shown[3]  # the larger rate learns more in two steps
    assert "there are" in results.table(found, "reward") and "train_mean_nll" in results.table(found, "reward")
    assert results.table([], "reward") == "no run is complete"


def test_finished_runs_are_skipped_and_failed_ones_do_not_end_the_others(base: train.CLIConfig, tmp_path: Path) -> None:
    started: list[float] = []

    async def main(config: train.CLIConfig) -> None:
        started.append(config.learning_rate)
        if config.learning_rate > 0.5 and len(started) < 4:
            raise RuntimeError("too fast")
        await train.cli_main(config)

    rates = [0.1, 0.9, 0.2]
    first = sweep(base, tmp_path, main, learning_rate=rates)
    assert [row["status"] for row in first] == ["completed", "failed", "completed"]
    assert first[1]["error"] == "RuntimeError: too fast"
    assert len(results.collect(tmp_path)) == 2
    again = sweep(base, tmp_path, main, learning_rate=rates, skip_existing=True)
    assert [row["status"] for row in again] == ["skipped", "completed", "skipped"] and started == [0.1, 0.9, 0.2, 0.9]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3


def test_what_cannot_be_swept_is_refused(base: train.CLIConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="lerning_rate is no setting of CLIConfig"):
        sweep(base, tmp_path, lerning_rate=[1])
    with pytest.raises(ConfigurationError, match="max_parallel=0"):
        runner.run(train.cli_main, base, sweep_dir=str(tmp_path), max_parallel=0)
    for name in ("math_rll", "sl_loop", "chat_sl.sweep"):
        with pytest.raises(ConfigurationError, match=f"recipe='{name}'"):
            cli.get_recipe(name)
    assert cli.get_recipe("math_rl")[0].__name__ == "CLIConfig"
    settings = cli.sweep_config("chat_sl")(sweep_dir=str(tmp_path), base=chz.replace(base, log_path="x"))
    with pytest.raises(ConfigurationError, match=r"base\.log_path"):
        cli.run_sweep(settings, "chat_sl")


def test_the_program_lists_the_settings_of_the_recipe_and_refuses_wrong_ones() -> None:
    program = [sys.executable, "-m", "tinker_cookbook.recipes.chat_sl.sweep"]
    # chz raises instead of ending the program where it sees pytest.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    shown = subprocess.run(
        [*program, "recipe=math_rl", "--help"], capture_output=True, text=True, timeout=60, env=plain
    )
    assert shown.returncode == 0, shown.stderr
    assert "base.groups_per_batch" in shown.stdout and "learning_rates" in shown.stdout
    wrong = subprocess.run([*program, "recipe=nothing"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 1 and wrong.stderr.startswith("refused: recipe='nothing'")
    command = [sys.executable, "-m", "tinker_cookbook.cli", "recipe", "chat_sl.sweep", "recipe=math_rl", "--help"]
    same = subprocess.run(command, capture_output=True, text=True, timeout=60, env=plain)
    assert same.stdout.splitlines()[1:] == shown.stdout.splitlines()[1:]
