"""The admin and worker for the peer, and where the peer's Python is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_CONFTEST = Path(__file__).parents[2] / "rock" / "conftest.py"
_NAME = "rock_stack_for_peers"


def _stack_module() -> Any:
    if _NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(_NAME, _CONFTEST)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_NAME] = module
        spec.loader.exec_module(module)
    return sys.modules[_NAME]


@pytest.fixture
def peer_rock_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    module = _stack_module()
    folder = tmp_path_factory.mktemp("rock")
    stack = module.RockStack(folder)
    stack.write_config()
    try:
        stack.start("worker")
        stack.start("admin")
        yield stack.url
    finally:
        stack.close()


@pytest.fixture(scope="session")
def peer_rock_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has the official SDK: ROCK_PEER_PYTHON, or a fresh environment made with uv."""
    given = os.environ.get("ROCK_PEER_PYTHON")
    if given:
        return given
    folder = Path(os.environ.get("ROCK_PEER_CACHE", tmp_path_factory.getbasetemp() / "peer-rock"))
    python = folder / "bin" / "python"
    if not python.exists():
        uv = [sys.executable, "-m", "uv"]
        made = subprocess.run([*uv, "venv", "-q", "-p", sys.executable, str(folder)], capture_output=True, text=True)
        if made.returncode == 0:
            command = [*uv, "pip", "install", "-q", "-p", str(python), "rl-rock==1.11.*"]
            made = subprocess.run(command, capture_output=True, text=True, timeout=280)
        if made.returncode != 0:
            pytest.skip(f"rl-rock 1.11 cannot be installed here: {made.stderr.strip()[-300:]}")
    return str(python)
