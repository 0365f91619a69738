"""SWE-agent's pinned source on its way into the control image: what is refused before anything is built, and what configure.py writes."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest
import yaml

from rock.harbor.swe_bundle import tree_digest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "rock" / "harbor" / "scripted_swe_agent"


@pytest.fixture
def prepare(run_script, work_folder, tmp_path):
    """prepare_sandbox.py on a machine whose Docker answers, up to the source of SWE-agent."""
    import zipfile

    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "docker").write_text('#!/bin/sh\n[ "$1" = info ]\n')
    (programs / "docker").chmod(0o755)
    wheel = tmp_path / "rl_rock-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("rock/__init__.py", "")
    task = tmp_path / "tasks" / "own__task-9"
    for name in ("instruction.md", "task.toml", "environment/Dockerfile", "tests/test.sh"):
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text("x\n")

    def run(*options: str | Path):
        import os

        command = ["prepare_sandbox.py", "--rock-root", ROOT, "--task", work_folder, "--task-id", "own__task-9"]
        command += ["--wheel", wheel, "--source", task.parent, *options]
        return run_script(*command, PATH=f"{programs}:{os.environ['PATH']}")

    return run


def test_a_source_that_cannot_be_reached_is_said_with_the_ways_out(prepare):
    done = prepare("--swe-agent", "https://127.0.0.1:9/SWE-agent.git")
    assert done.returncode == 2
    line = done.stderr.strip()
    assert "SWE-agent's source cannot be had" in line and "\n" not in line
    for way in ("--swe-agent FOLDER", "TARBALL of commit 3ea751c087f3", "--swe-agent-sha256", "--swe-agent none"):
        assert way in line


def test_a_folder_or_tarball_that_is_not_pinned_or_not_the_pinned_one_is_refused(prepare, tmp_path):
    done = prepare("--swe-agent", SOURCE)
    assert done.returncode == 2 and f"give --swe-agent-sha256 {tree_digest(SOURCE)}" in done.stderr
    changed = tmp_path / "changed"
    shutil.copytree(SOURCE, changed)
    (changed / "config" / "default.yaml").write_text("agent: {}\n")
    done = prepare("--swe-agent", changed, "--swe-agent-sha256", tree_digest(SOURCE))
    assert done.returncode == 2 and f"pinned is {tree_digest(SOURCE)}" in done.stderr
    tarball = tmp_path / "SWE-agent.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        archive.add(SOURCE, "SWE-agent")
    done = prepare("--swe-agent", tarball, "--swe-agent-sha256", "0" * 64)
    assert done.returncode == 2 and "pinned is 0000" in done.stderr
    done = prepare("--swe-agent", "https://127.0.0.1:9/x.git", "--swe-agent-commit", "v1.1.0")
    assert done.returncode == 2 and "--swe-agent-commit 'v1.1.0'" in done.stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    done = prepare("--swe-agent", empty, "--swe-agent-sha256", tree_digest(empty))
    assert done.returncode == 2 and "no source of SWE-agent" in done.stderr


@pytest.mark.parametrize("archive", [{"bundle": "/opt/public/a.tar.gz", "bundle_sha256": "a" * 64}, None])
def test_configure_names_the_archive_that_was_prepared(run_script, work_folder, tmp_path, archive):
    python = work_folder / "runtime-venv" / "bin" / "python"
    manifest = work_folder / "sandbox-preparation" / "manifest.json"
    model = tmp_path / "model"
    for file in (python, manifest, model / "config.json"):
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    manifest.write_text(json.dumps({"control_image": {"name": "tinker-harbor:local", "swe_agent": archive}}))
    options = ["--task-root", work_folder, "--task-id", "demo__task-1", "--model", model, "--rollout-only"]
    done = run_script("configure.py", *options, "--outer-image", "tinker-harbor:local", "--node-ip", "10.0.0.5")
    assert done.returncode == 0, done.stderr
    kwargs = yaml.safe_load((work_folder / "config" / "harbor.yaml").read_text())["agents"][0]["kwargs"]
    assert {name: kwargs.get(name) for name in ("bundle", "bundle_sha256")} == (
        archive or {"bundle": None, "bundle_sha256": None}
    )
    assert kwargs["per_instance_call_limit"] == "31" and kwargs["completion_kwargs"] == {"max_tokens": 8192}
