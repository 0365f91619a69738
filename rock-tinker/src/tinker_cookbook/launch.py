"""Starts a Tinker backend for one job and closes it again.

    async with ServerJob.start(runtime_yaml, jobs_dir) as job:
        service = tinker.ServiceClient(base_url=job.base_url, api_key=job.api_key)

The backend is `tinker-backend serve` in its own process group. It ends with the block, with the process that holds the
block (even after kill -9), and its runtime ends with it. Its logs are in the job's folder, which the line
`TINKER_SERVER_JOB` names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tinker_cookbook.child import Child
from tinker_cookbook.swe.errors import BackendFailed, SettingError

log = logging.getLogger(__name__)

_STOP_SECONDS = 20.0
# The SDK refuses to start without a key; a backend without api_keys_file takes any.
_ANY_KEY = "tml-local"


@dataclass(frozen=True)
class ServerJob:
    """A running backend. `base_url` and `api_key` are for `tinker.ServiceClient`."""

    name: str
    base_url: str
    api_key: str
    pid: int
    log_dir: Path

    @staticmethod
    @contextlib.asynccontextmanager
    async def start(runtime_yaml: Path, jobs_dir: Path, *, label: str = "job") -> AsyncIterator[ServerJob]:
        """Starts the backend of a runtime.yaml, waits until its models are loaded, and closes it at the end.

        Args:
            runtime_yaml: its relative paths are relative to it.
            jobs_dir: the job's folder is made in here.

        Raises:
            SettingError: the file is missing or wrong, or the port is taken.
            BackendFailed: the backend ended early or was not ready in `runtime.start_timeout_seconds`.
        """
        settings = ServerJob.check(runtime_yaml)
        host, port = settings["backend"]["host"], settings["backend"]["port"]
        log_dir = _job_folder(jobs_dir, label)
        config = log_dir / "runtime.yaml"
        settings["logs"]["folder"] = str(log_dir)
        config.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        output = log_dir / "backend.out"
        process = Child([_program(), "serve", "--config", str(config)], output=output)
        job = ServerJob(log_dir.name, f"http://{host}:{port}", _api_key(settings), process.pid, log_dir)
        shown = {"job": job.name, "base_url": job.base_url, "pid": job.pid, "log_dir": str(log_dir)}
        log.info("TINKER_SERVER_JOB %s", json.dumps(shown))
        started = time.monotonic()
        try:
            await _wait_ready(job, process, float(settings["runtime"]["start_timeout_seconds"]), output)
            log.info("backend ready after %.1f s", time.monotonic() - started)
            yield job
        finally:
            process.stop(_STOP_SECONDS)
            log.info("backend closed: job %s", job.name)

    @staticmethod
    def check(runtime_yaml: Path) -> dict[str, Any]:
        """The settings of a backend that could be started now.

        Raises:
            SettingError: the file is missing or wrong, the port is taken, or the program or a key is missing.
        """
        settings = read_runtime_yaml(runtime_yaml)
        _program()
        _api_key(settings)
        _check_port(settings["backend"]["host"], settings["backend"]["port"], runtime_yaml)
        return settings


def read_runtime_yaml(path: Path) -> dict[str, Any]:
    """A runtime.yaml with its defaults filled in where this module needs them, and absolute paths.

    Raises:
        SettingError: no such file, or it is no mapping.
    """
    settings = read_yaml(path)
    here = path.resolve().parent
    backend = settings.setdefault("backend", {})
    backend.setdefault("host", "127.0.0.1")
    backend.setdefault("port", 19210)
    runtime = settings.setdefault("runtime", {})
    runtime.setdefault("start_timeout_seconds", 600)
    runtime.setdefault("engine", "engine.yaml")
    settings.setdefault("logs", {})
    settings.setdefault("checkpoints", {}).setdefault("folder", "./checkpoints")
    for section, key in (("runtime", "engine"), ("checkpoints", "folder"), ("backend", "api_keys_file")):
        value = settings[section].get(key)
        if value:
            settings[section][key] = str((here / Path(value).expanduser()).absolute())
    return settings


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping.

    Raises:
        SettingError: no such file, no YAML, or no mapping.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingError(f"{path} does not exist; write it with configure.py") from error
    except (OSError, yaml.YAMLError) as error:
        raise SettingError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise SettingError(f"{path} holds no mapping; write it anew with configure.py")
    return data


def _program() -> str:
    """The backend of this environment before any other on PATH."""
    beside = Path(sys.executable).parent / "tinker-backend"
    found = str(beside) if beside.is_file() else shutil.which("tinker-backend")
    if not found:
        raise SettingError(
            f"tinker-backend is not installed beside {sys.executable}; run setup.sh control, or pip install tinker-backend"
        )
    return found


def _check_port(host: str, port: int, config: Path) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SettingError(
                f"{host}:{port} cannot be used ({error.strerror}); end the program that holds it "
                f"(ss -lntp 'sport = :{port}' names it) or set another backend.port in {config}"
            ) from error


def _job_folder(jobs_dir: Path, label: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(100):
        folder = jobs_dir / (f"{label}-{stamp}" + (f"-{attempt}" if attempt else ""))
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise SettingError(f"no job folder can be made in {jobs_dir}; remove old ones")


def _api_key(settings: dict[str, Any]) -> str:
    if not settings["backend"].get("api_keys_file"):
        return _ANY_KEY
    key = os.environ.get("TINKER_API_KEY")
    if not key:
        raise SettingError(
            "backend.api_keys_file is set, so the backend wants a key; export TINKER_API_KEY "
            "(tinker-backend keys makes one), or remove the setting"
        )
    return key


async def _wait_ready(job: ServerJob, process: Child, budget: float, output: Path) -> None:
    end = time.monotonic() + budget
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
        while time.monotonic() < end:
            if process.exit_code() is not None:
                raise BackendFailed(
                    f"the backend ended with exit code {process.exit_code()} before it was ready: {_tail(output)} "
                    f"(all of it: {job.log_dir})"
                )
            with contextlib.suppress(httpx.HTTPError):
                answer = await client.get(f"{job.base_url}/api/v1/healthz", headers={"x-api-key": job.api_key})
                if answer.status_code == 200:
                    return
            await asyncio.sleep(0.2)
    raise BackendFailed(
        f"the backend was not ready within runtime.start_timeout_seconds = {budget:g} s; see {job.log_dir}, "
        "and raise it in runtime.yaml if the model is still loading"
    )


def _tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
