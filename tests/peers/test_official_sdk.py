"""Unmodified official SDKs, in environments of their own, drive the server over sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]


@pytest.mark.parametrize("version", ["0.24.1", "0.25.0", "0.38.0", "newest"])
def test_each_supported_release_walks_the_basic_flow(
    version: str, sdk_python: Any, run_walk: Any, peer_server: Any
) -> None:
    python = sdk_python(version)
    walk = run_walk(python, "walk_basic.py", peer_server().url, "fake-model")
    assert walk["losses"][2] < walk["losses"][0]
    if version != "newest":
        assert walk["version"] == version


def test_every_public_method_works_or_is_refused_by_intent(sdk_python: Any, run_walk: Any, peer_server: Any) -> None:
    server = peer_server()
    walk = run_walk(sdk_python("0.38.0"), "walk_full.py", server.url, "fake-model")
    unusual = {name: text for name, text in walk["outcomes"].items() if text != "ok" and "not tried" not in text}
    assert set(unusual) == {
        "TrainingClient.optim_step (dimuon)",
        "TrainingClient.forward_backward (stable_reinforce)",
        "RestClient.whoami",  # the server has no keys here
    }
    documented = {name for name in documented_methods() if not name.endswith(".get_tokenizer")}  # it needs a real model
    assert documented <= set(walk["outcomes"])


def documented_methods() -> set[str]:
    """What the table in docs/protocol.md says the server works with, each twin by its own name."""
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+\.\w+)`( \(\+ `_async`\))? \| yes \|", text, re.MULTILINE)
    return {name for name, _ in rows} | {f"{name}_async" for name, twin in rows if twin}


def test_every_public_method_works_with_api_keys_and_tokens(
    sdk_python: Any, run_walk: Any, peer_server: Any, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    made = subprocess.run(
        [sys.executable, "-m", "tinker_backend", "keys", "create", "--file", str(keys), "--name", "walker"],
        capture_output=True,
        text=True,
        check=True,
    )
    server = peer_server(backend={"api_keys_file": str(keys)})
    walk = run_walk(sdk_python("0.38.0"), "walk_full.py", server.url, "fake-model", made.stdout.strip())
    assert walk["outcomes"]["RestClient.whoami"] == "ok"


@pytest.mark.model
@pytest.mark.slow
def test_every_public_method_works_over_the_real_engine(
    sdk_python: Any, run_walk: Any, real_server: Any, real_model: Path, tmp_path: Path
) -> None:
    (tmp_path / real_model.name).symlink_to(real_model)  # a sampling client looks its tokenizer up by the model's name
    walk = run_walk(
        sdk_python("0.38.0"), "walk_full.py", real_server.url, real_model.name, timeout=500, folder=tmp_path
    )
    assert documented_methods() <= set(walk["outcomes"])


def test_the_command_line_of_the_sdk_lists_downloads_and_deletes(
    sdk_python: Any, run_walk: Any, peer_server: Any, tmp_path: Path
) -> None:
    python, server = sdk_python("0.38.0"), peer_server()
    run_walk(python, "walk_full.py", server.url, "fake-model")

    def tinker(*arguments: str) -> Any:
        environment = {**os.environ, "TINKER_BASE_URL": server.url, "TINKER_API_KEY": "tml-test", "HOME": str(tmp_path)}
        command = [str(Path(python).parent / "tinker"), "-f", "json", *arguments]
        for _ in range(3):
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
            if done.returncode != -signal.SIGABRT:
                break  # on a busy machine the SDK's transport sometimes aborts while its interpreter ends
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return json.loads(done.stdout) if done.stdout.strip().startswith(("{", "[")) else done.stdout

    assert "fake-model" in [m["model_name"] for m in tinker("model", "list")["models"]]
    runs = tinker("run", "list")["runs"]
    trained = next(run for run in runs if run["last_checkpoint"])
    tinker("run", "info", trained["training_run_id"])
    listed = tinker("checkpoint", "list", "--run-id", trained["training_run_id"])["checkpoints"]
    path = next(c["tinker_path"] for c in listed if c["checkpoint_type"] == "training")
    assert tinker("checkpoint", "info", path)["lora_rank"] == 8
    tinker("checkpoint", "publish", path)
    tinker("checkpoint", "unpublish", path)
    tinker("checkpoint", "set-ttl", path, "--ttl", "7200")
    tinker("checkpoint", "set-ttl", path, "--remove")
    target = tmp_path / "download"
    target.mkdir()
    downloaded = tinker("checkpoint", "download", path, "-o", str(target))
    assert (Path(downloaded["destination"]) / "adapter_model.safetensors").is_file()
    assert tinker("checkpoint", "delete", path, "-y")["deleted_count"] == 1
    tinker("billing", "checkpoint-storage")
    session = trained["training_run_id"].split(":")[0]
    assert (
        "traceEvents"
        in Path(tinker("session", "export-trace", session, "-o", str(tmp_path / "t.json"))["destination"]).read_text()
    )
