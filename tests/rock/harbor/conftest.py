"""The whole chain: admin, worker, outer sandbox, Harbor in it, the task's environment nested in that, and a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rock.harbor.outer import outer_binds
from rock.harbor.tasks import REPOSITORY_TASKS, build_repository_task, write_mini_tasks
from rock.harbor.tasks.sources import SourceError
from rock.model_service.messages import ModelRequest, SessionEnd
from rock.sdk import HarborJobConfig, Job, JobResult

STATE_PARENT = os.environ.get("ROCK_TEST_STATE", "/var/tmp")


@pytest.fixture(scope="session")
def harbor_python() -> str:
    """Python of the environment with harbor and mini-swe-agent, named by ROCK_HARBOR_PYTHON."""
    python = os.environ.get("ROCK_HARBOR_PYTHON", "")
    if not python or not Path(python).is_file():
        pytest.skip("ROCK_HARBOR_PYTHON names no Python with harbor and mini-swe-agent")
    return python


@pytest.fixture(scope="session")
def harbor_store() -> Iterator[Path]:
    """Folder of built layers, shared by all tests of a run."""
    folder = Path(tempfile.mkdtemp(prefix="rock-layers-", dir=STATE_PARENT))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def harbor_tasks(tmp_path_factory: pytest.TempPathFactory, harbor_store: Path) -> Callable[[str], Path]:
    """Task folder by id, built once; its layers are in the store then."""
    output = tmp_path_factory.mktemp("tasks")
    built: dict[str, Path] = {}

    def get(task_id: str) -> Path:
        if task_id not in built:
            if task_id in REPOSITORY_TASKS:
                try:
                    built[task_id] = build_repository_task(task_id, output)
                except SourceError as error:
                    pytest.skip(f"no package index: {error}")
            else:
                kind = task_id.split("__")[1].split("-")[0]
                folders = write_mini_tasks(output / "mini", train_per_kind=1, heldout_per_kind=0, kinds=[kind])
                built[task_id] = folders["train"][0]
            words = [
                sys.executable,
                "-m",
                "rock.harbor.tasks",
                "prebuild",
                str(built[task_id]),
                "--store",
                str(harbor_store),
            ]
            subprocess.run(words, check=True, timeout=240)
        return built[task_id]

    return get


@pytest.fixture(scope="module")
def harbor_stack(rock_stack: Any, harbor_python: str, harbor_store: Path) -> Any:
    """Worker and admin whose sandboxes see Harbor and the layers."""
    for name in ("admin", "worker"):
        rock_stack.kill(name, signal.SIGINT)
    rock_stack.write_config(runtime={"binds": outer_binds(harbor_python, harbor_store)})
    for name in ("worker", "admin"):
        rock_stack.start(name)
    return rock_stack


@dataclass
class FinishedJob:
    result: JobResult
    requests: list[dict[str, Any]]
    end: SessionEnd | None
    export: Path


@pytest.fixture
def run_harbor_job(harbor_stack: Any, tmp_path: Path) -> Callable[..., Any]:
    """Runs a job on one task; ``commands`` are what the scripted model answers, one a request."""

    async def run(task: Path, agent: dict[str, Any], commands: list[str] | None = None, **fields: Any) -> FinishedJob:
        config = HarborJobConfig(
            experiment_id="tests",
            timeout=fields.pop("timeout", 240),
            environment={
                "base_url": harbor_stack.url,
                "image": "local",
                "memory": "2g",
                "cpus": 2,
                "auto_clear_seconds": 600,
                "uploads": [(str(task), f"/opt/swe/harbor-tasks/{task.name}")],
                "import_path": "rock.harbor.local_environment:LocalEnvironment",
            },
            agents=[agent],
            datasets=[{"path": "/opt/swe/harbor-tasks", "task_names": [task.name]}],
            **fields,
        )
        job = Job(config)
        try:
            await job.submit()
            seen: list[dict[str, Any]] = []
            serving = asyncio.create_task(answer(job, list(commands or []), seen))
            result = await job.wait()
            with contextlib.suppress(asyncio.TimeoutError):
                end = await asyncio.wait_for(serving, 20)
            export = await job.export(tmp_path / "export")
            return FinishedJob(result, seen, end, export)
        finally:
            await job.close()

    return run


async def answer(job: Job, commands: list[str], seen: list[dict[str, Any]]) -> SessionEnd | None:
    """The scripted model: one fenced command for each request, then the submission."""
    while True:
        found = await job.model_service.next_request(60)
        if isinstance(found, ModelRequest):
            seen.append(found.body)
            command = commands.pop(0) if commands else "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
            text = f"I go on.\n\n```bash\n{command}\n```"
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            await job.model_service.respond(found.index, {"choices": [{"message": {"content": text}}], "usage": usage})
        elif isinstance(found, SessionEnd):
            return found
