"""A sandbox through SDK, admin, worker and rocklet."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from rock.errors import CommandTimeout, SandboxError, SandboxGone, SandboxNotFound, SandboxStartError
from rock.sdk import Sandbox, SandboxConfig, SandboxGroup, SandboxGroupConfig

pytestmark = pytest.mark.namespaces
API = "/apis/envs/sandbox/v1"

ECHO_SERVER = """
import http.server, json
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = json.dumps({"path": self.path, "body": body.decode(), "key": self.headers.get("x-api-key")}).encode()
        self.send_response(201); self.send_header("content-length", str(len(answer))); self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 28080), Echo).serve_forever()
"""


async def test_commands_sessions_and_files_work_through_the_sdk(rock_stack: Any, tmp_path: Path) -> None:
    async with rock_stack.sandbox(experiment_id="e1", user_id="u1") as sandbox:
        result = await sandbox.execute("echo out; echo err >&2; id -u; exit 3", env={"A": "1"}, cwd="/tmp")
        assert (result.stdout, result.stderr, result.exit_code) == ("out\n0\n", "err\n", 3)
        assert (await sandbox.execute(["printf", "%s", "$HOME"])).stdout == "$HOME"
        await sandbox.create_session(session="s", env={"B": "2"})
        seen = await sandbox.arun("cd /usr; echo $B; exit_code() { return 7; }; exit_code", session="s")
        assert (seen.output, seen.exit_code) == ("2\n", 7)
        assert (await sandbox.arun("pwd", session="s")).output == "/usr\n"
        long = await sandbox.arun("pwd; sleep 0.2; echo late; exit 6", session="s", mode="nohup", wait_timeout=20)
        assert (long.output, long.exit_code) == ("/usr\nlate\n", 6)
        assert (await sandbox.arun("exit 4", mode="nohup")).exit_code == 4
        await sandbox.write_file("/data/a b.txt", "grün")
        assert (await sandbox.read_file("/data/a b.txt")).content == "grün"
        blob = bytes(range(256)) * 9000
        (tmp_path / "up").mkdir()
        (tmp_path / "up/blob").write_bytes(blob)
        (tmp_path / "up/link").symlink_to("blob")
        await sandbox.upload_by_path(tmp_path / "up/blob", "/data/blob")
        await sandbox.fs.upload_dir(tmp_path / "up", "/data/dir")
        assert (await sandbox.execute("sha256sum < /data/blob; sha256sum < /data/dir/link")).stdout.split("\n")[0:1]
        await sandbox.fs.download_file("/data/dir/blob", tmp_path / "down")
        assert (tmp_path / "down").read_bytes() == blob
        await sandbox.fs.chmod("/data/dir/blob", "600")
        assert await sandbox.fs.download_dir("/data", tmp_path / "copy") == []
        assert (tmp_path / "copy/dir/link").read_bytes() == blob
        assert (await sandbox.process.execute_script("echo script; exit 2")).exit_code == 2
        status = await sandbox.get_status()
        assert (status.state, status.is_alive, status.user_id, status.experiment_id) == ("running", True, "u1", "e1")
        assert [one["event"] for one in status.state_history] == ["alive"]
    with pytest.raises(SandboxGone, match="deleted"):
        again = await Sandbox.attach(sandbox.sandbox_id, SandboxConfig(base_url=rock_stack.url))
        await again.execute("true")


async def test_a_command_that_runs_too_long_is_an_error_never_a_success(rock_stack: Any) -> None:
    async with rock_stack.sandbox() as sandbox:
        start = time.monotonic()
        with pytest.raises(CommandTimeout) as caught:
            await sandbox.execute("echo part; sleep 60", timeout=0.5)
        assert caught.value.details["stdout"] == "part\n" and caught.value.sandbox_id == sandbox.sandbox_id
        await sandbox.create_session()
        with pytest.raises(CommandTimeout):
            await sandbox.arun("sleep 60", session="default", wait_timeout=0.5)
        with pytest.raises(CommandTimeout) as caught:
            await sandbox.arun("echo part; sleep 60", mode="nohup", wait_timeout=0.5)
        assert caught.value.details["output"] == "part\n"
        assert time.monotonic() - start < 15
        assert (await sandbox.arun("echo alive", session="default")).output == "alive\n"
        assert (await sandbox.execute("ps -e -o args= | grep -c '^sleep 60' || true")).stdout == "0\n"


async def test_a_cancelled_long_command_is_killed_inside(rock_stack: Any) -> None:
    async with rock_stack.sandbox() as sandbox:
        task = asyncio.create_task(sandbox.arun("sleep 77", mode="nohup", wait_timeout=100))
        await asyncio.sleep(0.4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await sandbox.execute("ps -e -o args= | grep -c '^sleep 77' || true")).stdout == "0\n"


async def test_failed_starts_say_why_and_leave_nothing_pending(rock_stack: Any) -> None:
    with pytest.raises(SandboxStartError, match="image_pull.*no/such") as caught:
        await rock_stack.sandbox(image="no/such:image").start()
    record = await Sandbox.attach(caught.value.sandbox_id, SandboxConfig(base_url=rock_stack.url))
    status = await record.get_status()
    assert status.state in ("stopped", "deleted") and status.status["image_pull"]["status"] == "failed"
    for fields, message in [
        ({"memory": "lots"}, "'lots' is not a size"),
        ({"memory": "999g"}, "above the limit"),
        ({"cpus": 99}, "above the limit"),
        ({"network": "moon"}, "network 'moon'"),
        ({"sandbox_id": "../../etc"}, "sandbox_id"),
    ]:
        with pytest.raises(SandboxError, match=message):
            await rock_stack.sandbox(**fields).start()


async def test_answers_are_envelopes_also_for_bad_requests(rock_stack: Any) -> None:
    async with httpx.AsyncClient(base_url=rock_stack.url) as client:
        assert (await client.get("/")).json() == {"message": "hello, ROCK!"}
        answer = await client.post(f"{API}/start", json={"no": "image"})
        assert answer.status_code == 200
        body = answer.json()
        assert body["status"] == "Failed" and body["result"]["code"] == 4000 and "image" in body["message"]
        body = (await client.get(f"{API}/get_status", params={"sandbox_id": "nope"})).json()
        assert body["status"] == "Failed" and body["result"]["sandbox_id"] == "nope"
        body = (await client.post(f"{API}/start", json={"image": "local", "memory": "1g", "cpus": 1})).json()
        assert body["status"] == "Success"
        sandbox_id = body["result"]["sandbox_id"]
        body = (await client.post(f"{API}/execute", json={"sandbox_id": sandbox_id, "command": ["/no/such"]})).json()
        assert body["status"] == "Failed" and body["result"]["exit_code"] == 127
        assert "cannot run" in body["result"]["failure_reason"]
        batch = (await client.post(f"{API}/sandboxes/batch", json={"sandbox_ids": [sandbox_id, "nope"]})).json()
        assert [one["sandbox_id"] for one in batch["result"]] == [sandbox_id]
        page = (await client.get(f"{API}/sandboxes", params={"state": "running"})).json()["result"]
        assert sandbox_id in [one["sandbox_id"] for one in page["items"]]
        assert (await client.post(f"{API}/stop", json={"sandbox_id": sandbox_id})).json()["status"] == "Success"
        assert (await client.post(f"{API}/stop", json={"sandbox_id": sandbox_id})).json()["status"] == "Success"
        body = (await client.get(f"{API}/get_status", params={"sandbox_id": sandbox_id})).json()["result"]
        assert [one["event"] for one in body["state_history"]] == ["alive", "stop", "delete"]
    with pytest.raises(SandboxNotFound):
        await Sandbox.attach("nope", SandboxConfig(base_url=rock_stack.url))


async def test_a_port_inside_is_reached_by_http_and_websocket_without_network(rock_stack: Any) -> None:
    async with rock_stack.sandbox(extra_headers={"X-API-Key": "secret"}) as sandbox:
        await sandbox.write_file("/tmp/echo.py", ECHO_SERVER)
        job = await sandbox.start_job("exec /usr/bin/python3 /tmp/echo.py")
        for _ in range(100):
            try:
                answer = await sandbox.request("POST", 28080, "/v1/a%20b?x=1", content=b"hello")
                break
            except SandboxError as error:
                problem = error
                await asyncio.sleep(0.05)
        else:
            pytest.fail(f"{problem}; {await sandbox.poll_job(job['job_id'], wait=0, offset=0)}")
        assert answer.status_code == 201
        assert answer.json() == {"path": "/v1/a%20b?x=1", "body": "hello", "key": None}
        base = f"{rock_stack.url}{API}/sandboxes/{sandbox.sandbox_id}/proxy"
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{base}/deep?rock_target_port=28080&y=2", content=b"q")
            assert answer.json()["path"] == "/deep?y=2"
            answer = await client.post(f"{base}/deep", headers={"X-ROCK-Target-Port": "28080"}, content=b"q")
            assert answer.json()["path"] == "/deep"
            both = await client.post(f"{base}/port/28080/x?rock_target_port=28080", content=b"q")
            assert both.json()["status"] == "Failed"
        url = f"ws{rock_stack.url[4:]}{API}/sandboxes/{sandbox.sandbox_id}/portforward?port=28080"
        async with websockets.connect(url, proxy=None) as tunnel:
            await tunnel.send(b"POST /raw HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
            text = b""
            try:
                while True:
                    text += await tunnel.recv()
            except websockets.exceptions.ConnectionClosed:
                pass
        assert text.startswith(b"HTTP/1.1 201") and b'"/raw"' in text
        await sandbox.kill_job(job["job_id"])
        with pytest.raises(SandboxError, match="port 28080"):
            await sandbox.request("POST", 28080, "/x", content=b"")


async def test_an_unused_sandbox_is_cleared_and_a_used_one_is_not(rock_stack: Any) -> None:
    idle, busy = rock_stack.sandbox(auto_clear_seconds=2), rock_stack.sandbox(auto_clear_seconds=2)
    await asyncio.gather(idle.start(), busy.start())
    for _ in range(8):
        await asyncio.sleep(0.5)
        await busy.execute("true")
    with pytest.raises(SandboxGone, match="auto-clear"):
        await idle.execute("true")
    assert (await busy.get_status()).state == "running"
    await asyncio.gather(idle.close(), busy.close())


async def test_a_committed_image_starts_with_what_was_written(rock_stack: Any) -> None:
    async with rock_stack.sandbox() as sandbox:
        await sandbox.execute(
            "echo v1 > /opt/app; rm -rf /usr/share/common-licenses; touch /usr/local/bin/tool; mkdir /srv/d"
        )
        committed = await sandbox.commit("team/app:1")
        assert committed.exit_code == 0
    async with rock_stack.sandbox(image="team/app:1") as sandbox:
        result = await sandbox.execute(
            "cat /opt/app; ls /usr/local/bin/tool; [ -e /usr/share/common-licenses ] || echo gone; ls -d /srv/d"
        )
        assert result.stdout == "v1\n/usr/local/bin/tool\ngone\n/srv/d\n"
        await sandbox.execute("echo v2 > /opt/app; rmdir /srv/d")
        await sandbox.commit("team/app:2")
    async with rock_stack.sandbox(image="team/app:2") as sandbox:
        assert (await sandbox.execute("cat /opt/app; ls /srv")).stdout == "v2\n"
    async with rock_stack.sandbox(image="team/app:1") as sandbox:
        assert (await sandbox.execute("cat /opt/app")).stdout == "v1\n"


async def test_a_group_starts_and_stops_together(rock_stack: Any) -> None:
    config = SandboxGroupConfig(
        base_url=rock_stack.url, image="local", memory="256m", cpus=1, size=4, start_concurrency=4
    )
    async with SandboxGroup(config) as group:
        names = await asyncio.gather(*(one.execute("hostname") for one in group.sandboxes))
        assert len({one.stdout for one in names}) == 4
        members = list(group.sandboxes)
    assert not group.sandboxes and len(members) == 4


async def test_an_out_of_memory_command_is_killed_and_the_sandbox_lives(rock_stack: Any) -> None:
    async with rock_stack.sandbox(memory="200m") as sandbox:
        result = await sandbox.execute(["/usr/bin/python3", "-c", "x = bytearray(600 << 20)"], timeout=60)
        assert result.exit_code in (1, 137)
        assert (await sandbox.execute("echo alive")).stdout == "alive\n"


async def test_a_killed_rocklet_comes_back(rock_stack: Any) -> None:
    async with rock_stack.sandbox() as sandbox:
        await sandbox.execute("echo kept > /tmp/kept")
        pid = (await sandbox.execute(["pgrep", "-n", "-f", "rock[.]rocklet"])).stdout.strip()
        with pytest.raises(SandboxError, match="rocklet"):
            await sandbox.execute(f"kill -9 {pid}; sleep 5")
        assert (await sandbox.execute("cat /tmp/kept")).stdout == "kept\n"


async def test_statistics_tell_of_the_sandbox(rock_stack: Any) -> None:
    async with rock_stack.sandbox() as sandbox:
        figures = await sandbox.transport.call(
            "GET", "/get_sandbox_statistics", params={"sandbox_id": sandbox.sandbox_id}
        )
        assert {"cpu", "mem", "disk", "net"} <= set(figures)
        assert json.dumps(figures)
