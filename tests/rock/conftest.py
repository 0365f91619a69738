"""Shared parts of the rock tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from rock.sdk import Sandbox, SandboxConfig

sys.path.insert(0, str(Path(__file__).parent))
from debian_archive import ArchiveMissing
from docker_daemon import BASE_IMAGE, DockerDaemon, NoDaemon, ping, provide_image

STATE_PARENT = os.environ.get("ROCK_TEST_STATE", "/var/tmp")
DOCKER_IMAGE = BASE_IMAGE
_START_SECONDS = 60.0


@pytest.fixture
def rock_state() -> Iterator[Path]:
    """A short folder on a real disk (tmp_path can be a long path, and overlayfs cannot write on overlayfs)."""
    folder = Path(tempfile.mkdtemp(prefix="rock-", dir=STATE_PARENT))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class RockStack:
    """A worker and an admin as processes of their own, started by the command line."""

    folder: Path
    runtime: str = "local"
    admin_port: int = field(default_factory=free_port)
    worker_port: int = field(default_factory=free_port)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    python: str = sys.executable
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def write_config(self, **sections: dict[str, Any]) -> None:
        config: dict[str, Any] = {
            "admin": {"port": self.admin_port},
            "worker": {"port": self.worker_port},
            "state": {"folder": "state"},
            "lifecycle": {"reconcile_interval_seconds": 0.5},
        }
        for name, values in sections.items():
            config[name] = {**config.get(name, {}), **values}
        (self.folder / "admin.yaml").write_text(yaml.safe_dump(config))

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [self.python, "-m", "rock.cli", name, "start", "--config", str(self.folder / "admin.yaml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.variables},
            )
        port = self.admin_port if name == "admin" else self.worker_port
        end = time.monotonic() + _START_SECONDS
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            if self.processes[name].poll() is not None or time.monotonic() > end:
                pytest.fail(f"{name} did not start:\n{self.log(name)}")
            time.sleep(0.05)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-6000:]

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        process = self.processes.pop(name)
        process.send_signal(number)
        return process.wait(30)

    def sandbox(self, **fields: Any) -> Sandbox:
        defaults = {"image": "local", "memory": "1g", "cpus": 1, "auto_clear_seconds": 600, "startup_timeout": 60}
        return Sandbox(SandboxConfig(base_url=self.url, **{**defaults, **fields}))

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name, signal.SIGINT)


@pytest.fixture(scope="session")
def docker_url() -> Iterator[str]:
    """A Docker daemon that has the image rock-test:base; one is started here if none runs. Skips with the reason."""
    pytest.importorskip("docker")
    url = os.environ.get("ROCK_TEST_DOCKER") or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    daemon: DockerDaemon | None = None
    try:
        if ping(url):
            daemon = DockerDaemon(STATE_PARENT)
            daemon.start()
            url = daemon.url
        provide_image(url, DOCKER_IMAGE)
        yield url
    except (NoDaemon, ArchiveMissing) as error:
        pytest.skip(str(error))
    finally:
        if daemon is not None:
            daemon.stop()


@pytest.fixture
def own_docker_daemon() -> Iterator[DockerDaemon]:
    """A daemon for one test alone, with the image rock-test:base. Skips with the reason."""
    pytest.importorskip("docker")
    daemon: DockerDaemon | None = None
    try:
        daemon = DockerDaemon(STATE_PARENT)
        daemon.start()
        provide_image(daemon.url, DOCKER_IMAGE)
        yield daemon
    except (NoDaemon, ArchiveMissing) as error:
        pytest.skip(str(error))
    finally:
        if daemon is not None:
            daemon.stop()


@pytest.fixture(
    scope="module",
    params=["local", pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow])],
)
def rock_stack(request: pytest.FixtureRequest) -> Iterator[RockStack]:
    """One worker and one admin for a whole test module, for each runtime."""
    folder = Path(tempfile.mkdtemp(prefix="rock-", dir=STATE_PARENT))
    stack = RockStack(folder, runtime=request.param)
    if request.param == "docker":
        url = request.getfixturevalue("docker_url")
        stack.write_config(runtime={"type": "docker", "docker_url": url, "image_aliases": {"local": DOCKER_IMAGE}})
    else:
        stack.write_config()
    try:
        stack.start("worker")
        stack.start("admin")
        yield stack
    finally:
        stack.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def own_rock_stack(rock_state: Path) -> Iterator[RockStack]:
    """A stack for one test alone; the test writes its configuration and starts what it needs."""
    stack = RockStack(rock_state)
    stack.write_config()
    yield stack
    stack.close()
