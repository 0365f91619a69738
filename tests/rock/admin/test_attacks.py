"""What a sandbox tries against the machine, its limits and other sandboxes, over the same API for every runtime."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rock.errors import SandboxError

pytestmark = [pytest.mark.namespaces]
SECRET = "swordfish-of-the-machine"
# Everything that a root user in the sandbox can read within its root, and the variables of every process it sees.
SEARCH = f"""
for file in /proc/[0-9]*/environ; do tr '\\0' '\\n' < $file; done 2>/dev/null | grep -a {SECRET[:9]} && echo FOUND variable
grep -arl --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude-dir=site-packages --exclude-dir=.pyenv {SECRET[:9]} / 2>/dev/null | grep -v '^/tmp/search' && echo FOUND file
find / -xdev \\( -name worker.key -o -name admin.db -o -name docker.sock -o -name id_rsa \\) 2>/dev/null | grep . && echo FOUND name
grep -q '^root:[^*!x:]' /etc/shadow && echo FOUND password
true
"""


@pytest.fixture
def secret_of_the_machine(rock_stack: Any) -> Iterator[str]:
    """A secret in the worker's environment, beside its state, and in this user's home."""
    rock_stack.kill("worker", 2)
    rock_stack.variables = {"MACHINE_SECRET": SECRET}
    (rock_stack.folder / "secret").write_text(SECRET)
    rock_stack.start("worker")
    yield SECRET
    rock_stack.variables = {}


async def test_secrets_of_the_machine_cannot_be_found(rock_stack: Any, secret_of_the_machine: str) -> None:
    async with rock_stack.sandbox() as sandbox:
        await sandbox.write_file("/tmp/search", SEARCH)
        found = await sandbox.execute("sh /tmp/search; echo done", timeout=120)
        assert found.stdout == "done\n", found.stdout
        listed = await sandbox.execute("ls -A /root /home /var/lib/docker /var/run/docker.sock 2>/dev/null")
        # Places on the way to the rocklet's own Python, which Docker makes, hold nothing else.
        mounted = {part for path in (sys.prefix, sys.base_prefix) for part in Path(path).parts}
        assert not set(listed.stdout.split()) & (set(os.listdir("/root")) - {".bashrc", ".profile", *mounted})


async def test_another_sandbox_is_neither_seen_nor_reached(rock_stack: Any) -> None:
    async with rock_stack.sandbox() as victim, rock_stack.sandbox() as attacker:
        await victim.execute("echo mine > /tmp/own; hostname > /tmp/name")
        serve = "import http.server as h; h.HTTPServer(('0.0.0.0', 28080), h.SimpleHTTPRequestHandler).serve_forever()"
        await victim.start_job(["python3", "-c", serve, "victim-marker"])
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(SandboxError):  # until it listens
                if (await victim.request("GET", 28080, "/proc/version")).status_code == 200:
                    break
            await asyncio.sleep(0.1)
        seen = await attacker.execute("cat /tmp/own 2>/dev/null; grep -al 'victim-mark[e]r' /proc/[0-9]*/cmdline")
        assert seen.stdout == ""
        reach = "import socket; socket.create_connection(('{}', 28080), 2)"
        for address in ("127.0.0.1", (await victim.execute("hostname -I")).stdout.strip() or "127.0.0.1"):
            assert (await attacker.execute(["python3", "-c", reach.format(address)])).exit_code != 0
        to_worker = f"import socket; socket.create_connection(('127.0.0.1', {rock_stack.worker_port}), 2)"
        assert (await attacker.execute(["python3", "-c", to_worker])).exit_code != 0


async def test_a_process_bomb_stays_within_its_sandbox(rock_stack: Any) -> None:
    async with rock_stack.sandbox() as sandbox, rock_stack.sandbox() as other:
        program = "import os, time\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(60)\n    except OSError: break\nprint('full')"
        bomb = await sandbox.start_job(["python3", "-c", program])
        end = time.monotonic() + 60
        while "full" not in (await sandbox.poll_job(bomb["job_id"], wait=1, offset=0))["output"]:
            assert time.monotonic() < end
        assert (await other.execute("echo fine")).stdout == "fine\n"
        await sandbox.kill_job(bomb["job_id"])
        assert (await sandbox.execute("echo alive", timeout=30)).stdout == "alive\n"


async def test_names_and_paths_do_not_lead_out_of_the_api(rock_stack: Any) -> None:
    for name in ("../way-out", "a/b", "x" * 300, "a\nb", "-rf"):
        with pytest.raises(SandboxError):
            await rock_stack.sandbox(sandbox_id=name).start()
    assert not list(Path(rock_stack.folder).rglob("*way-out*"))
    (rock_stack.folder / "outside").write_text(SECRET)
    async with rock_stack.sandbox() as sandbox:
        for path in (
            f"{rock_stack.folder}/outside",
            f"/proc/1/root{rock_stack.folder}/outside",
            f"../../../..{rock_stack.folder}/outside",
        ):
            with pytest.raises(SandboxError):
                await sandbox.read_file(path)
        await sandbox.write_file("/tmp/deep/../../tmp/inside", "x")
        assert (await sandbox.execute("cat /tmp/inside")).stdout == "x"


HALF = '"\\ud800"'
ODD = [
    ("start", b'{"image":"local","cpus":NaN}', "body.cpus"),
    ("start", b'{"image":"local","pids":-1}', "body.pids"),
    ("start", b'{"image":"local","memory":"-1g"}', "is not a size"),
    ("start", b"\xff", "bad request"),
    ("start", b"\xff\xfe", "bad request"),
    ("start", b"[" * 100_000, "bad request"),
    ("execute", b'{"sandbox_id":"ID","command":["true"],"timeout":NaN}', "body.timeout"),
    ("execute", b'{"sandbox_id":"ID","command":["true"],"timeout":-1}', "body.timeout"),
    ("execute", b'{"sandbox_id":"ID","command":["\\u0000"]}', "NUL character"),
    ("execute", b'{"sandbox_id":"ID","command":[]}', "command is empty"),
    ("execute", f'{{"sandbox_id":"ID","command":{HALF}}}'.encode(), "surrogate"),
    ("write_file", f'{{"sandbox_id":"ID","path":"/tmp/x","content":{HALF}}}'.encode(), "surrogate"),
    ("read_file", b'{"sandbox_id":"ID","path":"/dev/zero"}', "no such regular file"),
]


async def test_odd_requests_are_failed_answers_and_the_connection_stays(rock_stack: Any) -> None:
    api = f"{rock_stack.url}/apis/envs/sandbox/v1"
    async with rock_stack.sandbox() as sandbox, httpx.AsyncClient(timeout=30) as client:
        for route, body, reason in ODD:
            content = body.replace(b"ID", sandbox.sandbox_id.encode())
            answer = await client.post(f"{api}/{route}", content=content, headers={"content-type": "application/json"})
            said = answer.json()
            assert said["status"] == "Failed" and answer.status_code in (200, 400), (route, body[:60], said)
            assert reason in said["message"] and said["result"]["code"] in (4000, 6000), (route, body[:60], said)
        assert (await sandbox.execute("echo alive")).stdout == "alive\n"


@pytest.mark.parametrize(
    "rock_stack", [pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.slow])], indirect=True
)
async def test_a_container_cannot_pass_its_owner_on_to_another_sandbox(rock_stack: Any, tmp_path: Path) -> None:
    """Files of the folder that worker and container share are replaced by links that the worker might follow."""
    async with rock_stack.sandbox() as victim, rock_stack.sandbox() as attacker:
        await victim.execute("echo victim > /tmp/who")
        await attacker.execute("echo attacker > /tmp/who")
        target = tmp_path / "file-of-the-machine"
        target.write_text("")
        os.utime(target, (1, 1))
        forged = (
            f"cd /run/rock && ls -A > /tmp/listed; rm -f rocklet.sock; ln -s ../{victim.sandbox_id}/rocklet.sock rocklet.sock; "
            f"ln -sf {target} heartbeat; ln -s / all; true"
        )
        await attacker.execute(forged)
        assert (await attacker.execute("cat /tmp/listed")).stdout.split() == ["heartbeat"]
        await asyncio.sleep(6)  # longer than the worker's beat
        for _ in range(20):  # also over new connections
            who = await asyncio.gather(*(attacker.execute("cat /tmp/who") for _ in range(5)))
            assert {one.stdout for one in who} == {"attacker\n"}
        assert target.stat().st_mtime == 1
    assert target.exists() and tmp_path.exists()
