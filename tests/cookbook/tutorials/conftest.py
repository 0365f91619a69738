"""One server with a tiny model for all notebooks and snippets."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tinker_cookbook.launch import ServerJob

REPOSITORY = Path(__file__).parents[3]
TINY = "tutorial-tiny"
DOCUMENTED = "SmolLM2-135M-Instruct"  # the name in the documentation's snippets; the tiny model answers to it here


@pytest.fixture(scope="session")
def tutorial_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the tiny model, under both names."""
    pytest.importorskip("torch")
    pytest.importorskip("tinker_backend")
    models = tmp_path_factory.mktemp("models")
    options = ["--family", "qwen3", "--context", "2048", "--out", str(models / TINY)]
    subprocess.run([sys.executable, "-m", "tinker_backend.models.tiny", *options], check=True, timeout=120)
    (models / DOCUMENTED).symlink_to(models / TINY)
    return models


@pytest.fixture(scope="session")
def tutorial_environment(tutorial_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment variables under which a program finds the server."""
    folder = tmp_path_factory.mktemp("server")
    engine = {
        "pretrain": str(tutorial_models / TINY),
        "model_name": TINY,
        "aliases": [DOCUMENTED],
        "sequence_length": 2048,
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    runtime = {"backend": {"port": port}, "runtime": {"engine": "engine.yaml"}, "ledger": {"url": "memory"}}
    (folder / "engine.yaml").write_text(yaml.safe_dump(engine))
    (folder / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    with asyncio.Runner() as runner:
        job = ServerJob.start(folder / "runtime.yaml", folder / "jobs")
        started = runner.run(job.__aenter__())
        environment = {
            **os.environ,
            "TINKER_BASE_URL": started.base_url,
            "TINKER_MODELS_DIR": str(tutorial_models),
            "MPLBACKEND": "Agg",
        }
        environment.pop("TINKER_TUTORIAL_MODEL", None)
        yield environment
        runner.run(job.__aexit__(None, None, None))
