"""The control image as a user makes it: prepared, configured, and run with its own Harbor, rocklet and agents in nested Docker."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from debian_archive import BASE_PACKAGES, ArchiveMissing, debian_archive
from docker_daemon import NESTING_IMAGE, provide_image
from nested_task import FIX, start_inner_docker, write_task

from rock.harbor.swe_bundle import tree_digest
from rock.model_service.messages import ModelRequest, SessionEnd
from rock.sdk import HarborJobConfig, Job

docker = pytest.importorskip("docker")
pytestmark = [pytest.mark.docker, pytest.mark.harbor, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
QS = ROOT / "examples" / "tinker_quick_start"
SOURCE = Path(__file__).with_name("scripted_swe_agent")
PYTHON_IMAGE = "rock-test:python"
TASK_ID = "demo__sums-1"
RECIPE = f"FROM {NESTING_IMAGE}\nCOPY python /usr/local\nRUN ldconfig\n"


@pytest.fixture(scope="module")
def python_image(docker_url: str, harbor_python: str) -> str:
    """Debian with Python 3.12 in /usr/local, as python:3.12-slim-bookworm is."""
    client = docker.DockerClient(base_url=docker_url, timeout=300)
    try:
        provide_image(docker_url, NESTING_IMAGE)
    except ArchiveMissing as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory() as folder:
        made = [harbor_python, "-B", "-m", "rock.runtime.own_python", f"{folder}/own"]
        subprocess.run(made, check=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT / "rock/src")})
        shutil.move(f"{folder}/own/python", f"{folder}/python")
        for library in Path(folder, "own/lib").iterdir():
            shutil.copy(library, f"{folder}/python/lib")
        shutil.rmtree(f"{folder}/own")
        Path(folder, "Dockerfile").write_text(RECIPE)
        client.images.build(path=folder, tag=PYTHON_IMAGE, rm=True)
    return PYTHON_IMAGE


@pytest.fixture(scope="module")
def prepared(docker_url: str, python_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """$TASK after prepare_sandbox.py and configure.py."""
    root = tmp_path_factory.mktemp("work")
    task, dist, model = root / "task", root / "dist", root / "model"
    write_task(root / "tasks" / TASK_ID)
    uv = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--no-build-isolation"]
    subprocess.run([*uv, "--python", sys.executable, "--out-dir", dist, ROOT / "rock"], check=True, timeout=120)
    for file in (task / "runtime-venv" / "bin" / "python", model / "config.json"):
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    environment = {**os.environ, "DOCKER_HOST": docker_url}
    command = [sys.executable, QS / "prepare_sandbox.py", "--rock-root", ROOT, "--task", task, "--task-id", TASK_ID]
    command += ["--wheel", next(dist.glob("rl_rock-*.whl")), "--source", root / "tasks", "--base-image", python_image]
    command += ["--swe-agent", SOURCE, "--swe-agent-sha256", tree_digest(SOURCE)]
    for _ in range(2):  # the second time there is nothing to do
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
        assert done.returncode == 0, done.stderr
    assert "building" not in done.stdout
    command = [sys.executable, QS / "configure.py", "--task-root", task, "--task-id", TASK_ID, "--model", model]
    command += ["--outer-image", "tinker-harbor:local", "--node-ip", "127.0.0.1", "--rollout-only"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    yield task
    docker.DockerClient(base_url=docker_url).images.remove("tinker-harbor:local", force=True)


async def test_the_prepared_image_runs_its_own_rocklet_harbor_and_agents_within_the_budget(
    prepared: Path, own_rock_stack: Any, docker_url: str, tmp_path: Path
) -> None:
    stack = own_rock_stack
    stack.runtime = "docker"
    try:
        base = debian_archive(BASE_PACKAGES)
    except ArchiveMissing as error:
        pytest.skip(str(error))
    section = yaml.safe_load((prepared / "config/admin.yaml").read_text())["runtime"]
    binds = [{"source": str(base), "target": "/opt/base.tar"}]
    stack.write_config(runtime={**section, "docker_url": docker_url, "binds": binds})
    stack.start("worker")
    stack.start("admin")
    content = yaml.safe_load((prepared / "config/harbor.yaml").read_text())
    content["environment"] |= {"base_url": stack.url, "memory": "3g", "cpus": min(2, len(os.sched_getaffinity(0)))}
    swe_agent = content["agents"][0]
    assert swe_agent["kwargs"]["bundle"] == "/opt/public/sweagent-runtime.tar.gz"
    mini = {"import_path": "rock.harbor.agents:PreinstalledMiniSweAgent", "model_name": "openai/local"}
    mini["kwargs"] = {"profile": "text", "step_limit": 6}
    content["agents"] = [{"name": "oracle"}, {"name": "nop"}, mini, swe_agent]
    job = Job(HarborJobConfig(**content))
    await job.sandbox.start()
    await start_inner_docker(job.sandbox)
    requests: list[dict[str, Any]] = []
    async with job:
        serving = asyncio.create_task(_answer(job, requests))
        result = await job.wait()
        end = await asyncio.wait_for(serving, 30)
        export = await job.export(tmp_path / "export")
        assert result.failure is None, result.output
        rewards = {trial.result["agent_info"]["name"]: trial.reward for trial in result.trials}
        assert rewards == {
            "oracle": 1.0,
            "nop": 0.0,
            "mini-swe-agent-preinstalled": 1.0,
            "swe-agent-budgeted": 1.0,
        }, result.output
        rocklet = await job.sandbox.execute("tr '\\0' ' ' < /proc/1/cmdline; ls /opt/harbor/bin; python3 -V")
        assert rocklet.stdout.startswith("/opt/harbor/python/bin/python3.12"), rocklet.stdout
    assert end is not None
    of_swe_agent = [one for one in requests if _is_swe_agent(one)]
    assert len(of_swe_agent) == 32
    assert {(one["max_tokens"], one["temperature"]) for one in of_swe_agent} == {(8192, 1.0)}
    seen = [message["content"] for message in of_swe_agent[-1]["messages"] if "OBSERVATION" in message["content"]]
    assert len(seen) == 8 and max(map(len, seen)) == 12000 + len("OBSERVATION:\n")
    trajectory = json.loads(next(export.rglob("task.traj")).read_text())
    assert trajectory["info"]["exit_status"] == "exit_cost"
    assert int(trajectory["info"]["settings"]["max_input_tokens"]) == 32768


def _is_swe_agent(body: dict[str, Any]) -> bool:
    return str(body["messages"][0]["content"]).startswith("You fix a repository with shell commands.")


async def _answer(job: Job, requests: list[dict[str, Any]]) -> SessionEnd | None:
    """Each agent fixes the file first. mini-swe-agent ends then; SWE-agent looks at long output until its budget is spent."""
    commands = {"mini": [FIX, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"], "swe": [FIX]}
    while True:
        found = await job.model_service.next_request(60)
        if isinstance(found, ModelRequest):
            requests.append(found.body)
            left = commands["swe" if _is_swe_agent(found.body) else "mini"]
            command = left.pop(0) if left else "head -c 20000 /dev/zero | tr '\\0' x"
            text = f"I go on.\n\n```bash\n{command}\n```"
            await job.model_service.respond(found.index, {"choices": [{"message": {"content": text}}]})
        elif isinstance(found, SessionEnd):
            return found
