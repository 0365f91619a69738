"""A backend over the embedded engine with a tiny random model, and recipes as programs against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

_START_SECONDS = 90


class RecipeBackend:
    """``tinker-backend serve`` on a free port, over a folder of its own."""

    def __init__(self, folder: Path, model: Path, sequence_length: int = 4096) -> None:
        self.folder, self.model, self.port = folder, model, 0
        engine = {
            "pretrain": str(model),
            "model_name": str(model),
            "sequence_length": sequence_length,
            "threads": 1,
            "actor_train": {"strategy_args": {"strategy_config": {"dtype": "float32"}}},
        }
        (folder / "engine.yaml").write_text(yaml.safe_dump(engine))
        config = {"backend": {"port": 0}, "runtime": {"engine": "engine.yaml"}}
        (folder / "runtime.yaml").write_text(yaml.safe_dump(config))
        self.output = folder / "serve.out"
        self.start()

    def start(self) -> None:
        """Starts the server on the port it had, or a free one."""
        command = [sys.executable, "-m", "tinker_backend", "serve", "--config", str(self.folder / "runtime.yaml")]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + _START_SECONDS
        while b"ready on http" not in (text := self.output.read_bytes()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the backend did not start:\n{text.decode()}")
            time.sleep(0.05)
        self.url = next(word for word in text.decode().split() if word.startswith("http://"))
        self.port = int(self.url.rsplit(":", 1)[1])

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def environment(self, **more: str) -> dict[str, str]:
        """Variables of a recipe's process; nothing is looked up at a hub."""
        given = {
            "TINKER_BASE_URL": self.url,
            "TINKER_API_KEY": "tml-local",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return {**os.environ, **given, **more}

    def start_recipe(self, recipe: str, folder: Path, settings: dict[str, Any], **env: str) -> subprocess.Popen[bytes]:
        """Starts ``python -m tinker_cookbook.recipes.<recipe> key=value ...`` in a folder; output goes to ``output.log``."""
        folder.mkdir(parents=True, exist_ok=True)
        words = [f"{key}={value}" for key, value in settings.items()]
        with (folder / "output.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", f"tinker_cookbook.recipes.{recipe}", *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(**env),
            )

    def run_recipe(self, recipe: str, folder: Path, settings: dict[str, Any], timeout: float = 120, **env: str) -> str:
        """Runs a recipe to its end and returns its output.

        Raises:
            AssertionError: its exit code is not 0.
        """
        process = self.start_recipe(recipe, folder, settings, **env)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = -9
        output = (folder / "output.log").read_text(errors="replace")
        assert code == 0, f"{recipe} ended with {code}:\n{output[-4000:]}"
        return output


def metric_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a run's metrics.jsonl."""
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
