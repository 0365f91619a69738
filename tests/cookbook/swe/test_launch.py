"""The backend of one job: it starts, it says where its logs are, and it never outlives the job."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from tinker_cookbook.launch import ServerJob
from tinker_cookbook.swe import BackendFailed, SettingError

FAKE_RUNTIME = Path(__file__).parents[2] / "backend" / "fake_runtime.py"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_config(folder: Path, engine: dict[str, object] | None = None, *, seconds: float = 60) -> Path:
    (folder / "engine.yaml").write_text(yaml.safe_dump(engine or {}))
    config = {
        "backend": {"port": free_port()},
        "runtime": {
            "engine": "engine.yaml",
            "command": [sys.executable, str(FAKE_RUNTIME)],
            "start_timeout_seconds": seconds,
        },
        "checkpoints": {"folder": "checkpoints"},
    }
    (folder / "runtime.yaml").write_text(yaml.safe_dump(config))
    return folder / "runtime.yaml"


def processes_with(text: str) -> list[int]:
    """Ids of the processes whose command line holds a text."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def wait_until_gone(text: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while (left := processes_with(text)) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


async def test_the_backend_is_up_within_the_block_and_gone_after_it(tmp_path, caplog):
    config = write_config(tmp_path)
    with caplog.at_level(logging.INFO):
        async with ServerJob.start(config, tmp_path / "jobs", label="rollout") as job:
            answer = httpx.get(f"{job.base_url}/api/v1/healthz", trust_env=False)
            assert answer.status_code == 200
            assert job.log_dir.parent == tmp_path / "jobs" and job.log_dir.name.startswith("rollout-")
    line = next(record.message for record in caplog.records if record.message.startswith("TINKER_SERVER_JOB"))
    assert json.loads(line.removeprefix("TINKER_SERVER_JOB "))["log_dir"] == str(job.log_dir)
    assert list(job.log_dir.iterdir())
    wait_until_gone(str(tmp_path), seconds=1)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{job.base_url}/api/v1/healthz", trust_env=False)


async def test_a_taken_port_is_refused_with_the_setting_that_changes_it(tmp_path):
    config = write_config(tmp_path)
    port = yaml.safe_load(config.read_text())["backend"]["port"]
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        with pytest.raises(SettingError, match=r"backend\.port"):
            async with ServerJob.start(config, tmp_path / "jobs"):
                pass


async def test_a_runtime_that_cannot_start_is_told_with_its_reason_and_leaves_no_process(tmp_path):
    config = write_config(tmp_path, {"fail_start": "the model folder is empty"}, seconds=8)
    with pytest.raises(BackendFailed) as caught:
        async with ServerJob.start(config, tmp_path / "jobs"):
            pass
    assert str(tmp_path / "jobs") in str(caught.value)
    wait_until_gone(str(tmp_path))


async def test_a_missing_runtime_yaml_names_the_script_that_writes_it(tmp_path):
    with pytest.raises(SettingError, match=r"configure\.py"):
        async with ServerJob.start(tmp_path / "runtime.yaml", tmp_path / "jobs"):
            pass


def test_backend_and_runtime_die_with_a_job_that_is_killed(tmp_path):
    config = write_config(tmp_path)
    program = (
        "import asyncio, pathlib, sys\n"
        "from tinker_cookbook.launch import ServerJob\n"
        "async def main():\n"
        "    async with ServerJob.start(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])) as job:\n"
        "        print('up', flush=True)\n"
        "        await asyncio.sleep(100)\n"
        "asyncio.run(main())\n"
    )
    job = subprocess.Popen([sys.executable, "-c", program, str(config), str(tmp_path / "jobs")], stdout=subprocess.PIPE)
    assert job.stdout is not None
    assert job.stdout.readline() == b"up\n"
    assert len(processes_with(str(tmp_path))) >= 3  # job, backend, runtime
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    wait_until_gone(str(tmp_path))
