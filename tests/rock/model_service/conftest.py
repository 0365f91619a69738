"""A ModelService process on a free port, one for each test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class RunningService:
    pid: int
    port: int
    data_dir: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def model_service_command(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rock.model_service", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def start_model_service(tmp_path: Path) -> Iterator[Callable[..., RunningService]]:
    folders: list[Path] = []

    def start(*options: str) -> RunningService:
        folder = tmp_path / f"service-{len(folders)}"
        folders.append(folder)
        done = model_service_command("start", "--port", "0", "--data-dir", str(folder), *options)
        assert done.returncode == 0, done.stderr
        state = json.loads(done.stdout)
        return RunningService(state["pid"], state["port"], folder)

    yield start
    for folder in folders:
        model_service_command("stop", "--data-dir", str(folder))


@pytest.fixture
def running_model_service(start_model_service: Callable[..., RunningService]) -> RunningService:
    return start_model_service()
