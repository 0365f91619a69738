"""The quick start's scripts as a user runs them, on the development environment in place of an installed one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

QS = Path(__file__).parents[2] / "examples" / "tinker_quick_start"


@pytest.fixture
def quick_start() -> Path:
    """Folder of the scripts."""
    return QS


@pytest.fixture
def work_folder(tmp_path: Path) -> Path:
    """A TASK whose control environment is the one that runs the tests, with one small task prepared."""
    folder = tmp_path / "task"
    (folder / "control-venv" / "bin").mkdir(parents=True)
    for name in ("python", "rock", "tinker-backend"):
        program = Path(sys.executable).parent / name
        if program.exists():
            (folder / "control-venv" / "bin" / name).write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
            (folder / "control-venv" / "bin" / name).chmod(0o755)
    harbor = Path(os.environ.get("ROCK_HARBOR_PYTHON", sys.executable)).parents[1]
    (folder / "harbor-venv").symlink_to(harbor)
    task = folder / "assets" / "harbor-tasks" / "demo__task-1"
    task.mkdir(parents=True)
    (task / "task.toml").write_text("[metadata]\n")
    return folder


@pytest.fixture
def run_script(work_folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script of the quick start with TASK set and returns what it did."""

    def run(*command: str | Path, task: str | None = str(work_folder), **env: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key not in ("TASK", "PY", "ROCK", "ROLL")}
        if task is not None:
            environment["TASK"] = task
        program = ["bash"] if str(command[0]).endswith(".sh") else [sys.executable]
        return subprocess.run(
            [*program, str(QS / command[0]), *map(str, command[1:])],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment | env,
        )

    return run
