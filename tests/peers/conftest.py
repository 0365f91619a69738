"""Environments of official SDK releases, and servers for them to talk to.

``TINKER_PEER_PYTHON`` names an interpreter with SDK 0.38; ``TINKER_PEER_HOME`` a folder of environments (default: the
user's cache). What is missing there is installed by ``install.sh``; without a package index the tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
HOME = Path(os.environ.get("TINKER_PEER_HOME", Path.home() / ".cache/tinker-backend/peers"))
MODEL = Path(os.environ.get("TINKER_TEST_MODEL", Path.home() / ".cache/tinker-backend/models/SmolLM2-135M-Instruct"))


def _backend_process() -> Any:
    spec = importlib.util.spec_from_file_location("peer_server_process", HERE.parent / "backend" / "conftest.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.BackendProcess


@pytest.fixture(scope="session")
def sdk_python() -> Callable[[str], str]:
    """The interpreter with a release of the official SDK; skips the test when there is none."""

    def find(version: str) -> str:
        if version == "0.38.0" and (named := os.environ.get("TINKER_PEER_PYTHON")):
            return named
        folder = HOME / version
        environment = {**os.environ, "TINKER_PEER_BASE_PYTHON": sys.executable}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
        torch = importlib.util.find_spec("torch")
        if torch is not None and torch.origin is not None:
            environment.setdefault("TINKER_PEER_TORCH", str(Path(torch.origin).parent.parent))
        made = subprocess.run(
            [str(HERE / "install.sh"), str(folder), version],
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
        )
        if made.returncode:
            pytest.skip(f"SDK {version} cannot be installed: {made.stderr.strip()[-200:]}")
        return str(folder / "bin" / "python")

    return find


@pytest.fixture(scope="session")
def run_walk() -> Callable[..., dict[str, Any]]:
    """Runs a script with a peer's interpreter and returns the JSON line that it ends with."""

    def run(
        python: str, script: str, *arguments: str, timeout: float = 240, folder: Path | None = None
    ) -> dict[str, Any]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("TINKER_", "PYTHONPATH"))}
        if (torch := importlib.util.find_spec("torch")) is not None and torch.origin is not None:
            environment["WALK_TORCH"] = str(Path(torch.origin).parent.parent)
        done = subprocess.run(
            [python, "-W", "ignore", str(HERE / script), *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**environment, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )
        # The official client was seen to abort while its interpreter ends, after the script's last line.
        ends = done.stdout.rstrip().endswith("}") and done.returncode in (0, -signal.SIGABRT)
        assert ends, f"{done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        result = json.loads(done.stdout.strip().splitlines()[-1])
        assert isinstance(result, dict)
        return result

    return run


@pytest.fixture
def peer_server(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes servers; they end with the test."""
    made: list[Any] = []

    def make(engine: dict[str, Any] | None = None, **config: Any) -> Any:
        made.append(_backend_process()(tmp_path / f"server{len(made)}", engine or {}, config))
        return made[-1]

    yield make
    for server in made:
        server.stop()


@pytest.fixture(scope="session")
def real_model() -> Path:
    """Folder of a real small model; skips the test without it."""
    if not (MODEL / "config.json").is_file():
        pytest.skip(f"no model in {MODEL}")
    return MODEL


@pytest.fixture
def real_server(peer_server: Callable[..., Any], real_model: Path) -> Any:
    """A server over the embedded engine with a real small model."""
    engine = {"pretrain": str(real_model), "sequence_length": 1024}
    return peer_server(engine, runtime={"command": [sys.executable, "-m", "tinker_backend.runtime"]})
