"""Placement over the nodes of a Ray cluster: what they have is what sandboxes get, and a lost node is said."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rock.errors import SandboxError, SandboxGone

pytest.importorskip("ray", reason="ray is not installed (pip install 'rl-rock[ray]')")
pytestmark = [pytest.mark.ray, pytest.mark.namespaces, pytest.mark.slow]

MIB = 1 << 20


@dataclass
class LocalRay:
    """A Ray of this machine alone; every node is a group of processes that can be killed as one."""

    folder: Path
    port: int
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, name: str, cpus: int, **resources: float) -> None:
        joined = ["--head", "--port", str(self.port), "--include-dashboard=false"]
        if self.nodes:
            joined = ["--address", self.address]
        words = [str(Path(sys.executable).parent / "ray"), "start", *joined, "--block", "--num-cpus", str(cpus)]
        words += ["--object-store-memory", str(80 * MIB), "--disable-usage-stats"]
        words += ["--resources", json.dumps(resources), "--memory", str(4096 * MIB)]
        if "--head" in joined:
            words += ["--temp-dir", str(self.folder / "r")]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.nodes[name] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "3"},
            )
        end = time.monotonic() + 60
        while b"started" not in (self.folder / f"{name}.log").read_bytes():
            if self.nodes[name].poll() is not None or time.monotonic() > end:
                pytest.fail(f"ray start: {(self.folder / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        process = self.nodes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


@pytest.fixture(scope="module")
def ray_stacks() -> Iterator[tuple[Any, Any, LocalRay]]:
    """An admin, two nodes of Ray and a worker on each. The second node alone has the resource `fast`."""
    from conftest import STATE_PARENT, RockStack, free_port

    folders = [Path(tempfile.mkdtemp(prefix="rr-", dir=STATE_PARENT)) for _ in range(3)]
    first, second = RockStack(folders[0]), RockStack(folders[1])
    ray = LocalRay(folders[2], free_port())
    # A token of this cluster's own, for its nodes and the admin; the user's is left alone.
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    placement = {"type": "ray", "address": ray.address, "wait_seconds": 2}
    try:
        ray.start("head", 2, rock_worker_port=first.worker_port)
        ray.start("second", 1, rock_worker_port=second.worker_port, fast=1)
        first.write_config(placement=placement, worker={"port": 9})  # nodes say their ports themselves
        first.start("admin")
        for stack in (first, second):
            stack.write_config(worker={"host": "0.0.0.0"})  # Ray names nodes by their outer address
        (folders[1] / "state").mkdir()
        shutil.copy(folders[0] / "state/worker.key", folders[1] / "state/worker.key")
        for stack in (first, second):
            stack.start("worker")
        first.write_config(placement=placement, worker={"port": 9})
        yield first, second, ray
    finally:
        first.close()
        second.close()
        for name in list(ray.nodes)[::-1]:
            ray.kill(name)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        monkeypatch.undo()


async def test_sandboxes_get_no_more_than_the_nodes_have(ray_stacks: tuple[Any, Any, LocalRay]) -> None:
    first, second, _ = ray_stacks
    boxes = [first.sandbox(cpus=1, memory="256m") for _ in range(3)]
    await asyncio.gather(*(box.start() for box in boxes))
    assert {(await box.execute("echo up")).stdout for box in boxes} == {"up\n"}
    urls = worker_urls(first)
    assert {urls[box.sandbox_id].rsplit(":")[-1] for box in boxes} == {str(s.worker_port) for s in (first, second)}
    with pytest.raises(SandboxError, match=r"no room for 1 cpus, 0\.25g memory within 2 s; free are 0 cpus") as full:
        await first.sandbox(cpus=1, memory="256m").start()
    assert full.value.sandbox_id
    await boxes[0].close()
    again = first.sandbox(cpus=1, memory="256m")
    await again.start()
    await asyncio.gather(*(box.close() for box in [*boxes[1:], again]))


async def test_what_no_node_can_ever_give_is_refused_at_once(ray_stacks: tuple[Any, Any, LocalRay]) -> None:
    first = ray_stacks[0]
    for fields in ({"cpus": 3}, {"memory": "30g"}, {"resources": {"fast": 2}}, {"resources": {"unheard_of": 1}}):
        with pytest.raises(SandboxError, match="no node of the Ray cluster is large enough"):
            await first.sandbox(**{"cpus": 1, "memory": "256m", **fields}).start()


async def test_a_killed_admin_comes_back_with_what_its_sandboxes_hold(ray_stacks: tuple[Any, Any, LocalRay]) -> None:
    first, second, _ = ray_stacks
    box = first.sandbox(cpus=1, memory="256m", resources={"fast": 1})
    await box.start()
    assert worker_urls(first)[box.sandbox_id].endswith(f":{second.worker_port}")
    first.kill("admin")
    first.start("admin")
    assert (await box.execute("echo alive")).stdout == "alive\n"
    with pytest.raises(SandboxError, match="no room"):
        await first.sandbox(cpus=1, memory="256m", resources={"fast": 1}).start()
    await box.close()
    again = first.sandbox(cpus=1, memory="256m", resources={"fast": 1})
    await again.start()
    await again.close()


async def test_sandboxes_of_a_lost_node_have_failed_with_the_reason(ray_stacks: tuple[Any, Any, LocalRay]) -> None:
    first, _, ray = ray_stacks
    box, other = first.sandbox(cpus=1, memory="256m", resources={"fast": 1}), first.sandbox(cpus=1, memory="256m")
    await asyncio.gather(box.start(), other.start())
    ray.kill("second")
    end = time.monotonic() + 40
    while (await box.get_status()).state == "running" and time.monotonic() < end:
        await asyncio.sleep(0.2)
    with pytest.raises(SandboxGone, match="left the Ray cluster") as gone:
        await box.execute("true")
    assert gone.value.sandbox_id == box.sandbox_id
    if worker_urls(first)[other.sandbox_id].endswith(str(first.worker_port)):
        assert (await other.execute("echo fine")).stdout == "fine\n"
    await asyncio.gather(box.close(), other.close())


def worker_urls(stack: Any) -> dict[str, str]:
    """Worker of each sandbox, from the admin's database."""
    with sqlite3.connect(stack.folder / "state/admin.db") as database:
        rows = database.execute("select sandbox_id, record from sandboxes").fetchall()
    return {sandbox_id: json.loads(record)["worker_url"] for sandbox_id, record in rows}
