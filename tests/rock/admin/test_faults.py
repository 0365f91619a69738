"""What a killed process, a full worker or a stopped service costs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from rock.config import load_config
from rock.errors import ConfigError, SandboxError, SandboxGone, TransportError
from rock.sdk import Sandbox, SandboxConfig

pytestmark = pytest.mark.namespaces
API = "/apis/envs/sandbox/v1"


def _traces(stack: Any) -> list[str]:
    """Processes, mounts, control groups and run folders that belong to the stack's sandboxes."""
    if stack.runtime == "docker":
        return _containers(stack)
    state = str(stack.folder)
    found = [f"mount {line}" for line in Path("/proc/self/mounts").read_text().splitlines() if state in line]
    run = stack.folder / "state/local/run"
    ids = [entry.name for entry in run.iterdir()] if run.is_dir() else []
    found += [f"run folder {name}" for name in ids]
    found += [f"group {path}" for path in Path("/sys/fs/cgroup").glob("*/**/rock-*") if path.name[5:] in _started]
    return found + [f"process {keeper}" for keeper in _keepers(state)]


def _keepers(state: str) -> list[int]:
    """Processes that watch over the local sandboxes of a state folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            keeper = b"rock.runtime.local.keeper" in (process / "cmdline").read_bytes()
            if keeper and any(state in os.readlink(fd) for fd in (process / "fd").iterdir()):
                found.append(int(process.name))
    return found


def _containers(stack: Any) -> list[str]:
    import docker

    url = yaml.safe_load((stack.folder / "admin.yaml").read_text())["runtime"]["docker_url"]
    client = docker.DockerClient(base_url=url)
    label = hashlib.sha256(str(stack.folder / "state/docker").encode()).hexdigest()[:16]
    found = client.containers.list(all=True, filters={"label": f"rock.worker={label}"})
    left = [f"container {one.name} {one.status}" for one in found]
    left += [f"run folder {entry.name}" for entry in (stack.folder / "state/docker/run").iterdir()]
    return left + [f"volume {one.name}" for one in client.volumes.list(filters={"dangling": True})]


def _machine(stack: Any) -> set[str]:
    """What the Docker daemon's containers have on the machine: processes, mounts, control groups, layers, files, interfaces."""
    if stack.runtime == "local":
        return set()
    import docker

    url = yaml.safe_load((stack.folder / "admin.yaml").read_text())["runtime"]["docker_url"]
    client = docker.DockerClient(base_url=url)
    data = client.info()["DockerRootDir"]
    client.close()
    found = {f"mount {line.split()[1]}" for line in Path("/proc/self/mounts").read_text().splitlines() if data in line}
    found |= {f"group {path}" for path in Path("/sys/fs/cgroup").glob("*/docker/*/")}
    for name in ("overlay2", "overlay2/l", "containers", "volumes", "image/overlay2/layerdb/mounts"):
        found |= {f"file {path}" for path in Path(data, name).glob("*") if path.name != "l"}
    found |= {f"file {path}" for path in (stack.folder / "state/docker").glob("*/*") if path.parent.name != "lib"}
    found |= {f"interface {path.name}" for path in Path("/sys/class/net").glob("veth*")}
    return found | {f"process {pid}" for pid in _shims(str(Path(data).parent))}


def _shims(folder: str) -> list[str]:
    """Processes that watch over the containers of a daemon."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if b"containerd-shim" in words and folder.encode() in words:
                found.append(process.name)
    return found


def _images(stack: Any) -> set[str]:
    """Images and layers: ids in Docker, folders of the local store."""
    if stack.runtime == "local":
        return {str(path) for name in ("images", "layers") for path in (stack.folder / "state/local" / name).glob("*")}
    import docker

    url = yaml.safe_load((stack.folder / "admin.yaml").read_text())["runtime"]["docker_url"]
    return {image.id for image in docker.DockerClient(base_url=url).images.list(all=True)}


_started: set[str] = set()


async def _gone(stack: Any, seconds: float = 15.0) -> list[str]:
    end = time.monotonic() + seconds
    while (left := _traces(stack)) and time.monotonic() < end:
        await asyncio.sleep(0.1)
    return left


async def _started_sandbox(stack: Any, **fields: Any) -> Sandbox:
    sandbox = stack.sandbox(**fields)
    await sandbox.start()
    _started.add(sandbox.sandbox_id)
    return sandbox


async def test_a_killed_admin_comes_back_with_its_sandboxes_and_their_sessions(own_rock_stack: Any) -> None:
    stack = own_rock_stack
    stack.start("worker")
    stack.start("admin")
    sandbox = await _started_sandbox(stack, user_id="me")
    await sandbox.create_session()
    await sandbox.arun("A=kept", session="default")
    stopped = await _started_sandbox(stack)
    await stopped.stop()
    stack.kill("admin")
    with pytest.raises(TransportError):
        await sandbox.execute("true")
    stack.start("admin")
    assert (await sandbox.arun("echo $A", session="default")).output == "kept\n"
    status = await sandbox.get_status()
    assert status.state == "running" and status.user_id == "me"
    assert (await stopped.get_status()).state == "deleted"
    await asyncio.gather(sandbox.close(), stopped.close())
    assert await _gone(stack) == []


async def test_a_killed_worker_takes_its_sandboxes_with_it_and_the_admin_says_so(own_rock_stack: Any) -> None:
    stack = own_rock_stack
    stack.start("worker")
    stack.start("admin")
    sandbox = await _started_sandbox(stack)
    running = asyncio.create_task(sandbox.execute("sleep 60"))
    await asyncio.sleep(0.5)
    stack.kill("worker")
    with pytest.raises(SandboxError, match="does not answer") as caught:
        await asyncio.wait_for(running, 10)
    assert caught.value.sandbox_id == sandbox.sandbox_id
    assert await _gone(stack) == []
    assert (await sandbox.is_alive()).is_alive is False
    stack.start("worker")
    end = time.monotonic() + 10
    while (await sandbox.get_status()).state == "running" and time.monotonic() < end:
        await asyncio.sleep(0.1)
    with pytest.raises(SandboxGone, match="worker .* was restarted"):
        await sandbox.execute("true")
    again = await _started_sandbox(stack)
    assert (await again.execute("echo fine")).stdout == "fine\n"
    await asyncio.gather(sandbox.close(), again.close())


async def test_after_a_reboot_the_state_is_rebuilt_from_disk(own_rock_stack: Any) -> None:
    """All processes are killed at once and control groups are gone, as after a reboot; the disk is as it was."""
    stack = own_rock_stack
    stack.write_config(lifecycle={"keep_stopped": True})
    stack.start("worker")
    stack.start("admin")
    running, stopped = await _started_sandbox(stack, user_id="me"), await _started_sandbox(stack)
    await stopped.execute("echo kept > /opt/kept")
    await stopped.stop()
    keepers = _keepers(str(stack.folder))
    assert keepers
    stack.kill("worker")
    stack.kill("admin")
    for keeper in keepers:  # else it would still clear up after its owner
        with contextlib.suppress(ProcessLookupError):
            os.kill(keeper, signal.SIGKILL)
    stack.start("worker")
    stack.start("admin")
    assert await _gone(stack) == []
    status = await running.get_status()
    assert status.state == "stopped" and status.user_id == "me"
    with pytest.raises(SandboxGone, match="worker .* was restarted"):
        await running.execute("true")
    await stopped.restart()
    assert (await stopped.execute("cat /opt/kept")).stdout == "kept\n"
    await stopped.delete()
    again = await _started_sandbox(stack)
    assert (await again.execute("echo fine")).stdout == "fine\n"
    await asyncio.gather(running.close(), stopped.close(), again.close())
    assert await _gone(stack) == []


async def test_starts_against_a_dead_worker_fail_fast_with_a_reason(own_rock_stack: Any) -> None:
    stack = own_rock_stack
    stack.start("admin")
    start = time.monotonic()
    with pytest.raises(SandboxError, match="does not answer"):
        await stack.sandbox().start()
    assert time.monotonic() - start < 10


async def test_ctrl_c_ends_worker_and_admin_in_order_and_leaves_nothing(own_rock_stack: Any) -> None:
    stack = own_rock_stack
    stack.start("worker")
    stack.start("admin")
    sandboxes = await asyncio.gather(*(_started_sandbox(stack) for _ in range(3)))
    await sandboxes[0].start_job("sleep 57.5")
    start = time.monotonic()
    assert stack.kill("admin", signal.SIGINT) == 0
    assert stack.kill("worker", signal.SIGINT) == 0
    assert time.monotonic() - start < 15
    assert await _gone(stack, 2) == []
    assert subprocess.run(["pgrep", "-f", "^sleep 57.5"], capture_output=True).stdout == b""


async def test_cpus_and_memory_of_a_worker_are_not_given_twice(own_rock_stack: Any) -> None:
    stack = own_rock_stack
    stack.write_config(worker={"total_cpus": 2, "total_memory": "1g"})
    stack.start("worker")
    stack.start("admin")
    first = await _started_sandbox(stack, cpus=1.5, memory="512m")
    with pytest.raises(SandboxError, match=r"no room|no worker has room for 1 cpus.*1\.5 cpus.*of .*2 cpus") as full:
        await stack.sandbox(cpus=1, memory="256m").start()
    assert full.value.sandbox_id
    with pytest.raises(SandboxError, match="memory"):
        await stack.sandbox(cpus=0.5, memory="768m").start()
    with pytest.raises(SandboxError, match="placement.type ray"):
        await stack.sandbox(resources={"tpu": 1}).start()
    second = await _started_sandbox(stack, cpus=0.5, memory="512m")
    await first.close()
    third = await _started_sandbox(stack, cpus=1.5, memory="512m")
    await asyncio.gather(second.close(), third.close())


async def test_routes_of_other_services_answer_failed_with_the_reason(own_rock_stack: Any) -> None:
    stack = own_rock_stack
    stack.start("admin")
    asked = [
        ("POST", "/apis/v1/envs/gem/make", "GEM"),
        ("POST", "/sandboxes", "E2B"),
        ("GET", "/sandboxes/abc", "E2B"),
        ("POST", f"{API}/warmup/tasks", "warmup"),
        ("POST", f"{API}/ops/tasksets", "ops"),
        ("GET", f"{API}/nonsense", "no route"),
    ]
    async with httpx.AsyncClient(base_url=stack.url) as client:
        for method, path, word in asked:
            answer = (await client.request(method, path, json={} if method == "POST" else None)).json()
            assert answer["status"] == "Failed" and word in answer["message"], answer
            assert answer["result"]["failure_reason"] == answer["message"]


async def test_a_worker_takes_no_more_sandboxes_than_its_limit(own_rock_stack: Any) -> None:
    stack = own_rock_stack
    stack.write_config(worker={"max_sandboxes": 2})
    stack.start("worker")
    stack.start("admin")
    first, second = await asyncio.gather(_started_sandbox(stack), _started_sandbox(stack))
    with pytest.raises(SandboxError, match="max_sandboxes"):
        await stack.sandbox().start()
    await first.close()
    third = await _started_sandbox(stack)
    await asyncio.gather(second.close(), third.close())


async def test_a_stopped_sandbox_restarts_with_its_files_where_that_is_configured(own_rock_stack: Any) -> None:
    stack = own_rock_stack
    stack.write_config(lifecycle={"keep_stopped": True})
    stack.start("worker")
    stack.start("admin")
    sandbox = await _started_sandbox(stack)
    await sandbox.execute("echo kept > /opt/kept")
    await sandbox.stop()
    assert (await sandbox.get_status()).state == "stopped"
    await sandbox.restart()
    assert (await sandbox.execute("cat /opt/kept")).stdout == "kept\n"
    await sandbox.delete()
    assert (await sandbox.get_status()).state == "deleted"
    store = stack.folder / "state/local"
    assert list((store / "images").iterdir()) == [] and list((store / "layers").iterdir()) == []
    await sandbox.transport.close()


async def test_a_key_is_asked_for_where_one_is_configured(own_rock_stack: Any) -> None:
    stack = own_rock_stack
    (stack.folder / "key").write_text("correct horse\n")
    (stack.folder / "key").chmod(0o600)
    stack.write_config(auth={"key_file": "key"})
    stack.start("worker")
    stack.start("admin")
    with pytest.raises(TransportError, match="asks for a key"):
        await stack.sandbox().start()
    with pytest.raises(TransportError, match="asks for a key"):
        await stack.sandbox(extra_headers={"X-API-Key": "wrong"}).start()
    for headers in (
        {"Authorization": "Bearer correct horse"},
        {"X-API-Key": "correct horse"},
        {"X-Key": "correct horse"},
    ):
        box = Sandbox(SandboxConfig(base_url=stack.url, extra_headers=headers))
        assert (await box.transport.call("GET", "/sandboxes"))["total"] == 0
        await box.transport.close()
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"http://127.0.0.1:{stack.worker_port}/sandboxes")).status_code == 401
        answer = await client.post(
            f"http://127.0.0.1:{stack.worker_port}/sandboxes", json={"sandbox_id": "x", "image": "local"}
        )
        assert answer.status_code == 401
    key_file = stack.folder / "state/worker.key"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert "correct horse" not in stack.log("admin") and key_file.read_text().strip() not in stack.log("worker")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("admin: {prot: 1}", "admin.prot"),
        ("worker: {port: 99999}", "worker.port"),
        ("runtime: {type: podman}", "runtime.type"),
        ("admin: {host: 0.0.0.0}", "auth.key_file"),
        ("- 1", "sections"),
        ("admin: [", "YAML"),
    ],
)
def test_a_wrong_configuration_names_the_key(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "admin.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "admin.yaml")


def test_a_port_in_use_is_said_in_one_line(own_rock_stack: Any) -> None:
    own_rock_stack.start("worker")
    command = ["-m", "rock.cli", "worker", "start", "--config", str(own_rock_stack.folder / "admin.yaml")]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "in use" in done.stderr and "worker.port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
async def test_many_starts_and_stops_leave_nothing_behind(rock_stack: Any) -> None:
    cycles = int(os.environ.get("ROCK_TEST_CYCLES", "200" if rock_stack.runtime == "local" else "20"))
    before_fds = len(os.listdir(f"/proc/{rock_stack.processes['worker'].pid}/fd"))
    before_images, before_machine = _images(rock_stack), _machine(rock_stack)
    gate = asyncio.Semaphore(4)

    async def cycle() -> None:
        async with gate:
            sandbox = await _started_sandbox(rock_stack, memory="256m")
            assert (await sandbox.execute("touch /usr/x /x; sleep 99 & echo ok")).stdout == "ok\n"
            await sandbox.close()

    begun = time.monotonic()
    await asyncio.gather(*(cycle() for _ in range(cycles)))
    print(f"{cycles} cycles in {time.monotonic() - begun:.0f} s")
    assert await _gone(rock_stack) == []
    assert _images(rock_stack) == before_images
    end = time.monotonic() + 15
    while (left := _machine(rock_stack) - before_machine) and time.monotonic() < end:
        await asyncio.sleep(0.2)
    assert left == set()
    after_fds = len(os.listdir(f"/proc/{rock_stack.processes['worker'].pid}/fd"))
    assert after_fds - before_fds < 40
    assert not any(
        line.startswith("rock ") and str(rock_stack.folder) in line
        for line in Path("/proc/mounts").read_text().splitlines()
    )


@pytest.mark.slow
async def test_many_sandboxes_work_in_parallel(rock_stack: Any) -> None:
    count = 32 if rock_stack.runtime == "local" else 8
    sandboxes = await asyncio.gather(*(_started_sandbox(rock_stack, memory="256m") for _ in range(count)))
    for _ in range(3):
        results = await asyncio.gather(*(one.execute("echo $((6*7)); hostname") for one in sandboxes))
        assert len({one.stdout for one in results}) == count
    await asyncio.gather(*(one.close() for one in sandboxes))
    assert await _gone(rock_stack) == []
