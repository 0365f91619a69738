"""The official cookbook in an environment of its own, a folder with local data, and a server over a tiny model.

``TINKER_COOKBOOK_PEER`` names a ready environment; else ``install.sh`` makes one in ``TINKER_PEER_HOME`` (default: the
user's cache). ``TINKER_COOKBOOK_MODEL`` names the folder of a model to use instead of the tiny one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
HOME = Path(os.environ.get("TINKER_PEER_HOME", Path.home() / ".cache/tinker-backend/peers"))
HUB_NAMES = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-8B-Base",
    "Qwen/Qwen3.5-4B",
    "Qwen/Qwen3.5-9B",
    "Qwen/Qwen3.5-9B-Base",
    "Qwen/Qwen3.6-27B",
    "Qwen/Qwen3.6-35B-A3B",
)
"""Names that the cookbook knows renderers for; here they are folders of the workspace and aliases of the server."""


@dataclass(frozen=True)
class Recipe:
    """What a finished recipe has left: rows of metrics.jsonl and checkpoints.jsonl."""

    metrics: list[dict[str, Any]]
    checkpoints: list[dict[str, Any]]

    def column(self, key: str) -> list[float]:
        """The values of a metric in the rows that have it."""
        return [row[key] for row in self.metrics if key in row]


COOKBOOK_TESTS = HERE.parents[1] / "cookbook"


@pytest.fixture(scope="module")
def observed(cookbook_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Any]]:
    """What a script of tests/cookbook observes of the official cookbook, and of this one."""

    def observe(script: str) -> tuple[Any, Any]:
        folder = tmp_path_factory.mktemp("observations")
        given = {key: value for key, value in os.environ.items() if not key.startswith("TINKER_")}
        given["HF_HUB_OFFLINE"] = "1"
        runs = {
            "theirs": (
                str(cookbook_environment / "bin/python"),
                given | {"PYTHONPATH": str(cookbook_environment / "source")},
            ),
            "ours": (sys.executable, given),
        }
        for label, (python, environment) in runs.items():
            words = [str(COOKBOOK_TESTS / script), str(COOKBOOK_TESTS / "data" / "tokenizer"), str(folder / label)]
            command = [python, "-W", "ignore", *words]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=560, cwd=folder)
            assert done.returncode == 0, done.stderr[-2000:]
        theirs, ours = (json.loads((folder / label).read_text()) for label in runs)
        return theirs, ours

    return observe


@pytest.fixture(scope="session")
def cookbook_environment() -> Path:
    """Folder of the environment; skips the tests when it cannot be made."""
    if named := os.environ.get("TINKER_COOKBOOK_PEER"):
        return Path(named)
    folder = HOME / "cookbook-0.6.1"
    environment = {**os.environ, "TINKER_PEER_BASE_PYTHON": sys.executable}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        environment.setdefault("TINKER_PEER_TORCH", str(Path(torch.origin).parent.parent))
    try:
        made = subprocess.run(
            [str(HERE / "install.sh"), str(folder)], env=environment, capture_output=True, text=True, timeout=400
        )
    except subprocess.TimeoutExpired:
        pytest.skip("the official cookbook was not installed within 400 s")
    if made.returncode:
        pytest.skip(f"the official cookbook cannot be installed: {made.stderr.strip()[-300:]}")
    return folder


@pytest.fixture(scope="session")
def cookbook_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working folder of the recipes: the model under its hub names, and small data sets under theirs."""
    workspace = tmp_path_factory.mktemp("workspace")
    model = Path(os.environ.get("TINKER_COOKBOOK_MODEL", workspace / "tiny"))
    if not (model / "config.json").is_file():
        # In a process of its own: torch need not stay in the memory of the tests.
        command = [sys.executable, "-m", "tinker_backend.models.tiny", "--out", str(model), "--context", "4096"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    (workspace / "model").symlink_to(model)
    for name in HUB_NAMES:
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).symlink_to(model)
    write_data(workspace)
    return workspace


def write_data(workspace: Path) -> None:
    """Chats (no_robots and a file of their own) and word problems (gsm8k) in the form that the recipes read."""
    rng = random.Random(0)
    chats, problems = [], []
    for _ in range(64):
        a, b = rng.randint(1, 20), rng.randint(1, 20)
        turns = [
            {"role": "user", "content": f"What is {a} plus {b}?"},
            {"role": "assistant", "content": f"It is {a + b}."},
        ]
        chats.append(json.dumps({"prompt": f"{a}+{b}", "prompt_id": f"{a}-{b}", "messages": turns, "category": "Sum"}))
        answer = f"{a} and {b} make {a + b}.\n#### {a + b}"
        problems.append(json.dumps({"question": f"Ann has {a} apples and gets {b}. How many?", "answer": answer}))
    robots, gsm8k = workspace / "HuggingFaceH4/no_robots", workspace / "openai/gsm8k"
    robots.mkdir(parents=True)
    (gsm8k / "main").mkdir(parents=True)
    for split, rows in (("train", slice(0, 48)), ("test", slice(48, 64))):
        (robots / f"{split}.jsonl").write_text("\n".join(chats[rows]) + "\n")
        (gsm8k / "main" / f"{split}.jsonl").write_text("\n".join(problems[rows]) + "\n")
    (workspace / "chats.jsonl").write_text("\n".join(chats) + "\n")
    (gsm8k / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n"
        "  - split: train\n    path: main/train.jsonl\n  - split: test\n    path: main/test.jsonl\n---\n"
    )


@pytest.fixture(scope="session")
def cookbook_server(cookbook_workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server over the embedded engine, in float32, with the substitute of stable_reinforce turned on."""
    path = HERE.parents[1] / "backend" / "conftest.py"
    spec = importlib.util.spec_from_file_location("cookbook_server_process", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    engine = {
        "pretrain": str((cookbook_workspace / "model").resolve()),
        "aliases": list(HUB_NAMES),
        "sequence_length": 2048,
        "actor_train": {"model_args": {"dtype": "float32"}},
    }
    server = module.BackendProcess(
        tmp_path_factory.mktemp("server"),
        engine,
        {
            "runtime": {"command": [sys.executable, "-m", "tinker_backend.runtime"]},
            "losses": {"stable_reinforce": "truncated_importance_sampling"},
        },
    )
    yield server
    server.stop()


@pytest.fixture(scope="session")
def run_recipe(
    cookbook_environment: Path, cookbook_workspace: Path, cookbook_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Recipe]:
    """Runs ``python -m tinker_cookbook.recipes.<module> key=value ...`` and reads what it wrote."""

    def run(module: str, /, timeout: float = 240, **options: Any) -> Recipe:
        home = tmp_path_factory.mktemp("recipe")
        log = home / "runs" / "log"
        options["log_path"] = str(log)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("TINKER_", "HF_"))}
        environment |= {
            "PYTHONPATH": str(cookbook_environment / "source"),
            "TINKER_BASE_URL": cookbook_server.url,
            "TINKER_API_KEY": "tml-test",
            "TINKER_TELEMETRY": "0",
            "TINKER_COOKBOOK_RUNS_DIR": str(home / "runs"),
            "HOME": str(home),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_DATASETS_CACHE": str(home / "datasets"),
            "OMP_NUM_THREADS": "1",
        }
        command = [str(cookbook_environment / "bin/python"), "-m", f"tinker_cookbook.recipes.{module}"]
        done = subprocess.run(
            [*command, *(f"{key}={value}" for key, value in options.items())],
            cwd=cookbook_workspace,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"{module} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-1500:]}"
        return Recipe(rows(log / "metrics.jsonl"), rows(log / "checkpoints.jsonl"))

    return run


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file; none when it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
