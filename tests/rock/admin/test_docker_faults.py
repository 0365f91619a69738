"""Faults of the Docker runtime."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest

from rock.errors import SandboxError, SandboxGone

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture
def docker_stack(own_rock_stack: Any, docker_url: str) -> Any:
    stack = own_rock_stack
    stack.runtime = "docker"
    stack.write_config(
        runtime={
            "type": "docker",
            "docker_url": docker_url,
            "image_aliases": {"local": "rock-test:base"},
            "privileged": "auto",
        }
    )
    stack.start("worker")
    stack.start("admin")
    return stack


def _containers(url: str, sandbox_id: str) -> list[str]:
    import docker

    client = docker.DockerClient(base_url=url)
    return [one.status for one in client.containers.list(all=True, filters={"label": f"rock.sandbox={sandbox_id}"})]


async def test_a_restarted_worker_removes_the_containers_of_the_killed_one(docker_stack: Any, docker_url: str) -> None:
    sandbox = docker_stack.sandbox()
    await sandbox.start()
    assert _containers(docker_url, sandbox.sandbox_id) == ["running"]
    docker_stack.kill("worker")
    docker_stack.start("worker")
    assert _containers(docker_url, sandbox.sandbox_id) == []
    end = time.monotonic() + 10
    while (await sandbox.get_status()).state == "running" and time.monotonic() < end:
        await asyncio.sleep(0.1)
    with pytest.raises(SandboxGone, match="restarted"):
        await sandbox.execute("true")
    await sandbox.close()


async def test_a_container_killed_from_outside_is_noticed_with_a_reason(docker_stack: Any, docker_url: str) -> None:
    import docker

    sandbox = docker_stack.sandbox()
    await sandbox.start()
    found = docker.DockerClient(base_url=docker_url).containers.list(
        filters={"label": f"rock.sandbox={sandbox.sandbox_id}"}
    )
    found[0].kill()
    end = time.monotonic() + 15
    while (await sandbox.get_status()).state == "running" and time.monotonic() < end:
        await asyncio.sleep(0.1)
    with pytest.raises(SandboxError, match="container is"):
        await sandbox.execute("true")
    assert _containers(docker_url, sandbox.sandbox_id) == []
    await sandbox.close()


async def test_the_almost_privileged_container_may_mount_and_an_ordinary_one_may_not(
    docker_stack: Any, own_rock_stack: Any
) -> None:
    async with docker_stack.sandbox() as sandbox:
        result = await sandbox.execute("mount -t tmpfs none /mnt && echo mounted")
        assert result.stdout == "mounted\n", result.stderr
    docker_stack.kill("worker", 2)
    text = (docker_stack.folder / "admin.yaml").read_text().replace("privileged: auto", "privileged: 'no'")
    (docker_stack.folder / "admin.yaml").write_text(text)
    docker_stack.start("worker")
    async with docker_stack.sandbox() as sandbox:
        assert (await sandbox.execute("mount -t tmpfs none /mnt")).exit_code != 0
        listed = (await sandbox.execute("ls /root")).stdout
        assert not set(listed.split()) & set(os.listdir("/root"))


async def test_a_killed_docker_daemon_costs_starts_but_no_hang_and_leaves_nothing_once_it_is_back(
    own_rock_stack: Any, own_docker_daemon: Any
) -> None:
    stack, daemon = own_rock_stack, own_docker_daemon
    stack.runtime = "docker"
    runtime = {"type": "docker", "docker_url": daemon.url, "image_aliases": {"local": "rock-test:base"}}
    stack.write_config(runtime=runtime)
    stack.start("worker")
    stack.start("admin")
    kept, stopped = stack.sandbox(), stack.sandbox()
    await asyncio.gather(kept.start(), stopped.start())
    daemon.kill()
    assert (await kept.execute("echo still here")).stdout == "still here\n"
    start = time.monotonic()
    with pytest.raises(SandboxError, match="Connection|connection") as failed:
        await stack.sandbox().start()
    assert failed.value.sandbox_id and time.monotonic() - start < 20
    await stopped.stop()
    assert (await stopped.get_status()).state == "deleted"
    daemon.start()  # without live-restore it ends the containers of its predecessor
    end = time.monotonic() + 40
    while (await kept.get_status()).state == "running" and time.monotonic() < end:
        await asyncio.sleep(0.2)
    with pytest.raises(SandboxGone, match="its container is"):
        await kept.execute("true")
    async with stack.sandbox() as again:
        assert (await again.execute("echo fine")).stdout == "fine\n"
    end = time.monotonic() + 20
    while (left := _containers(daemon.url, stopped.sandbox_id)) and time.monotonic() < end:
        await asyncio.sleep(0.2)
    assert left == [] and _containers(daemon.url, kept.sandbox_id) == []
    await asyncio.gather(kept.close(), stopped.close())


async def test_after_a_reboot_the_state_is_rebuilt_from_disk(own_rock_stack: Any, own_docker_daemon: Any) -> None:
    """Everything is killed, what lies in memory file systems is gone, and all is started again."""
    import docker

    stack, daemon = own_rock_stack, own_docker_daemon
    stack.runtime = "docker"
    runtime = {"type": "docker", "docker_url": daemon.url, "image_aliases": {"local": "rock-test:base"}}
    stack.write_config(runtime={**runtime, "privileged": "auto"})
    stack.start("worker")
    stack.start("admin")
    running, stopped = stack.sandbox(user_id="me"), stack.sandbox()
    await asyncio.gather(running.start(), stopped.start())
    await stopped.stop()
    for name in ("admin", "worker"):
        stack.kill(name)
    daemon.crash()
    daemon.start()
    stack.start("worker")
    stack.start("admin")
    assert (await stopped.get_status()).state == "deleted"
    status = await running.get_status()
    assert status.state == "stopped" and status.user_id == "me"
    with pytest.raises(SandboxGone, match="restarted"):
        await running.execute("true")
    client = docker.DockerClient(base_url=daemon.url)
    assert client.containers.list(all=True) == [] and client.volumes.list() == []
    async with stack.sandbox() as again:
        assert (await again.execute("echo fine")).stdout == "fine\n"
    await asyncio.gather(running.close(), stopped.close())
