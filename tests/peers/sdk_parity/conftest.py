"""The same walks with the official SDK and with ours, against the same scriptable server."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def _load(name: str, path: Path) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def official(sdk_python: Callable[[str], str]) -> str:
    """An interpreter with the official SDK 0.38.0."""
    return sdk_python("0.38.0")


@pytest.fixture
def walk(tmp_path: Path) -> Callable[..., Any]:
    """Runs a script of this folder with an interpreter against a new mock server: (its output, the server)."""
    mock = _load("parity_mock", HERE.parents[1] / "tinker" / "mock_tinker.py")

    def run(python: str, script: str, prepare: Callable[[Any, Any], None] | None = None) -> tuple[str, Any]:
        server = mock.MockTinker()
        if prepare is not None:
            prepare(server, mock)
        server.start()
        try:
            clean = {k: v for k, v in os.environ.items() if not k.startswith(("TINKER_", "PYTHONPATH"))}
            environment = {
                "TINKER_BASE_URL": server.url,
                "TINKER_API_KEY": "tml-test",
                "TINKER_TELEMETRY": "0",
                "HOME": str(tmp_path),
                "TINKER_TAGS": "t1",
            }
            done = subprocess.run(
                [python, "-W", "ignore", str(HERE / script)],
                env={**clean, **environment},
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stderr[-3000:]
            return done.stdout.replace(server.url, "URL"), server
        finally:
            server.stop()

    return run


@pytest.fixture
def ours() -> str:
    return sys.executable
