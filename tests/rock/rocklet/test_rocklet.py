"""The rocklet over a real UNIX socket."""

from __future__ import annotations

import asyncio
import io
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
import websockets
from fastapi import FastAPI, WebSocket

from rock.rocklet.app import create_app
from rock.rocklet.server import listen, make_server


async def _serve(app: FastAPI, listener: socket.socket) -> tuple[uvicorn.Server, asyncio.Task[None]]:
    server = make_server(app)
    task = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    return server, task


@pytest.fixture
async def rocklet(rock_state: Path) -> AsyncIterator[httpx.AsyncClient]:
    path = str(rock_state / "r.sock")
    server, task = await _serve(create_app(rock_state / "state"), listen(path))
    transport = httpx.AsyncHTTPTransport(uds=path)
    async with httpx.AsyncClient(transport=transport, base_url="http://rocklet", timeout=60) as client:
        yield client
    server.should_exit = True
    await task


async def _post(client: httpx.AsyncClient, route: str, /, **body: Any) -> dict[str, Any]:
    answer = await client.post(route, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_command_returns_streams_and_exit_code(rocklet: httpx.AsyncClient) -> None:
    out = await _post(rocklet, "/execute", command="echo out; echo err >&2; exit 7")
    assert (out["stdout"], out["stderr"], out["exit_code"]) == ("out\n", "err\n", 7)
    out = await _post(rocklet, "/execute", command=["printf", "%s", "a b$HOME"], env={"X": "1"}, cwd="/")
    assert out["stdout"] == "a b$HOME"
    out = await _post(rocklet, "/execute", command="kill -9 $$")
    assert out["exit_code"] == 137
    out = await _post(rocklet, "/execute", command="cat", stdin="grün")
    assert out["stdout"] == "grün"


async def test_a_missing_program_and_folder_are_errors_with_a_reason(rocklet: httpx.AsyncClient) -> None:
    for body in ({"command": ["/no/such"]}, {"command": "true", "cwd": "/no/such"}, {"command": []}):
        answer = await rocklet.post("/execute", json=body)
        assert answer.status_code == 511
        assert answer.json()["rockletexception"]["message"].startswith("cannot run the command")


async def test_a_command_that_runs_too_long_is_killed_with_its_children(rocklet: httpx.AsyncClient) -> None:
    start = time.monotonic()
    body = {"command": "echo before; (setsid sleep 61.25 &); sleep 61.25", "timeout": 0.5}
    answer = await rocklet.post("/execute", json=body)
    assert answer.status_code == 504 and time.monotonic() - start < 5
    problem = answer.json()["rockletexception"]
    assert "longer than 0.5 s" in problem["message"] and problem["extra_info"]["stdout"] == "before\n"
    left = await _post(rocklet, "/execute", command="ps -eo args | grep -c '^sleep 61.25' || true")
    assert left["stdout"].strip() == "0"


async def test_a_huge_output_is_cut_in_the_middle_and_whole_on_disk(rocklet: httpx.AsyncClient) -> None:
    out = await _post(rocklet, "/execute", command="echo first; head -c 20000000 /dev/zero | tr '\\0' x; echo last")
    assert len(out["stdout"]) < 9 << 20
    assert out["stdout"].startswith("first\n") and out["stdout"].endswith("last\n")
    assert Path(out["stdout_file"]).stat().st_size == 20_000_000 + 11


async def test_a_background_child_does_not_hold_up_the_answer(rocklet: httpx.AsyncClient) -> None:
    start = time.monotonic()
    out = await _post(rocklet, "/execute", command="sleep 3 & echo done")
    assert out["stdout"] == "done\n" and time.monotonic() - start < 2


async def test_a_long_command_is_polled_to_its_true_exit_status(rocklet: httpx.AsyncClient) -> None:
    job = await _post(rocklet, "/start_job", command="echo one; sleep 0.6; echo two; exit 5")
    first = await _post(rocklet, "/poll_job", job_id=job["job_id"], wait=10, offset=0, until="output")
    assert first["output"] == "one\n" and first["running"]
    second = await _post(rocklet, "/poll_job", job_id=job["job_id"], wait=10, offset=first["next_offset"])
    assert (second["output"], second["running"], second["exit_code"]) == ("two\n", False, 5)
    job = await _post(rocklet, "/start_job", command="sleep 60")
    dead = await _post(rocklet, "/kill_job", job_id=job["job_id"])
    assert (dead["running"], dead["exit_code"]) == (False, 137)
    answer = await rocklet.post("/poll_job", json={"job_id": "nope"})
    assert answer.status_code == 511 and "unknown" in answer.text


async def test_a_session_keeps_its_state_and_gives_real_exit_codes(rocklet: httpx.AsyncClient) -> None:
    await _post(rocklet, "/create_session", session="s", env={"START": "here"})

    async def run(command: str, **more: Any) -> dict[str, Any]:
        return await _post(rocklet, "/run_in_session", session="s", command=command, **{"check": "silent", **more})

    assert (await run("cd /usr && A=5; f() { echo f$1; }; echo $START"))["output"] == "here\n"
    out = await run("pwd; f $A; false")
    assert (out["output"], out["exit_code"]) == ("/usr\nf5\n", 1)
    assert (await run("(exit 42)"))["exit_code"] == 42
    assert (await run("echo $?"))["output"] == "42\n"
    assert (await run("kill -9 $BASHPID &\nwait $!"))["exit_code"] == 137
    out = await run("if then")
    assert out["exit_code"] == 2 and "syntax error" in out["output"]
    out = await run("cat <<'EOF'\n$A \"q\" `x`\nEOF\nprintf 'no newline'")
    assert out["output"] == '$A "q" `x`\nno newline'
    out = await run("sleep 0.01 &\nwait; echo grün $((1+1))")
    assert out["output"] == "grün 2\n"
    answer = await rocklet.post(
        "/run_in_session", json={"session": "s", "command": "echo x; (exit 2)", "check": "raise"}
    )
    assert answer.status_code == 511
    assert answer.json()["rockletexception"]["extra_info"] == {"exit_code": 2, "output": "x\n"}
    assert (await run("[ -t 1 ] || echo no terminal"))["output"] == "no terminal\n"
    await _post(rocklet, "/close_session", session="s")


async def test_a_command_that_changes_the_prompt_or_the_terminal_leaves_the_session_usable(rocklet: Any) -> None:
    await rocklet.post("/create_session", json={"session": "p"})

    async def run(command: str, **fields: Any) -> dict[str, Any]:
        answer = await rocklet.post(
            "/run_in_session", json={"session": "p", "command": command, "check": "silent", **fields}
        )
        return dict(answer.json())

    for command in (
        "PROMPT_COMMAND='echo hi'; PS1='$ '; (exit 5)",
        "unset PROMPT_COMMAND; (exit 5)",
        "stty -echo; (exit 5)",
    ):
        started = time.monotonic()
        assert (await run(command, timeout=20))["exit_code"] == 5
        seen = await run("echo $((6 * 7))")
        assert (seen["output"], seen["exit_code"]) == ("42\n", 0) and time.monotonic() - started < 5
    late = await rocklet.post(
        "/run_in_session", json={"session": "p", "command": "PROMPT_COMMAND=; sleep 60", "timeout": 0.5}
    )
    assert late.status_code == 504
    assert (await run("echo back"))["output"] == "back\n"


async def test_a_long_command_in_a_session_has_its_state_and_its_true_exit_status(rocklet: httpx.AsyncClient) -> None:
    await _post(rocklet, "/create_session")
    await _post(rocklet, "/run_in_session", command="cd /usr; V=5; f() { echo f$V; }")
    job = await _post(rocklet, "/start_job", command="pwd; f; sleep 0.3; exit 9", session="default")
    assert job["running"]
    out = await _post(rocklet, "/run_in_session", command="echo free")
    assert out["output"] == "free\n"
    end = await _post(rocklet, "/poll_job", job_id=job["job_id"], wait=10, offset=0)
    assert (end["output"], end["exit_code"], end["running"]) == ("/usr\nf5\n", 9, False)
    job = await _post(rocklet, "/start_job", command="sleep 60 & sleep 60", session="default", timeout=0.3)
    end = await _post(rocklet, "/poll_job", job_id=job["job_id"], wait=10)
    assert end["timed_out"] and not end["running"]


async def test_a_session_survives_a_time_out_and_an_interrupt(rocklet: httpx.AsyncClient) -> None:
    await _post(rocklet, "/create_session")
    body = {"command": "X=1; echo started; sleep 60; echo not reached", "timeout": 0.4}
    answer = await rocklet.post("/run_in_session", json=body)
    assert answer.status_code == 504
    assert answer.json()["rockletexception"]["extra_info"]["output"].startswith("started\n")
    out = await _post(rocklet, "/run_in_session", command="echo $X")
    assert out["output"] == "1\n"
    body = {"command": "trap '' INT; sleep 60", "timeout": 0.3}
    assert (await rocklet.post("/run_in_session", json=body)).status_code == 504
    running = asyncio.create_task(
        _post(rocklet, "/run_in_session", command="trap - INT; sleep 60; echo no", check="silent")
    )
    await asyncio.sleep(0.3)
    await _post(rocklet, "/interrupt_session")
    out = await asyncio.wait_for(running, 5)
    assert out["exit_code"] == 130 and "no" not in out["output"]


async def test_exit_ends_a_session_with_a_reason_and_it_can_be_made_anew(rocklet: httpx.AsyncClient) -> None:
    await _post(rocklet, "/create_session", session="e")
    assert (await rocklet.post("/create_session", json={"session": "e"})).status_code == 511
    answer = await rocklet.post("/run_in_session", json={"session": "e", "command": "echo bye; exit 3"})
    problem = answer.json()["rockletexception"]
    assert "exited with code 3" in problem["message"] and problem["extra_info"]["output"] == "bye\n"
    assert (await rocklet.post("/run_in_session", json={"session": "e", "command": "true"})).status_code == 511
    await _post(rocklet, "/create_session", session="e")
    assert (await _post(rocklet, "/run_in_session", session="e", command="echo new"))["output"] == "new\n"
    answer = await rocklet.post("/run_in_session", json={"session": "nope", "command": "true"})
    assert "does not exist" in answer.text


async def test_expect_returns_early_and_an_interactive_program_can_be_driven(rocklet: httpx.AsyncClient) -> None:
    await _post(rocklet, "/create_session")
    out = await _post(
        rocklet, "/run_in_session", command="python3 -u -c 'print(\"ready\"); print(input()*2)'", expect=["ready"]
    )
    assert out["expect_string"] == "ready" and out["exit_code"] is None
    out = await _post(rocklet, "/run_in_session", command="ab", is_interactive_quit=True)
    assert "abab" in out["output"] and out["exit_code"] == 0


async def test_files_are_read_written_uploaded_and_downloaded(rocklet: httpx.AsyncClient, rock_state: Path) -> None:
    path = str(rock_state / "d/e/f.txt")
    await _post(rocklet, "/write_file", path=path, content="grün\n")
    assert (await _post(rocklet, "/read_file", path=path))["content"] == "grün\n"
    assert (await rocklet.post("/read_file", json={"path": "/no/such"})).status_code == 511
    blob = bytes(range(256)) * 5000
    answer = await rocklet.post(
        "/upload", files={"file": ("b.bin", blob)}, data={"target_path": str(rock_state / "up/b")}
    )
    assert answer.json()["success"] and (rock_state / "up/b").read_bytes() == blob
    assert (await rocklet.get("/download", params={"path": str(rock_state / "up/b")})).content == blob
    archive = await rocklet.get("/download_dir", params={"path": str(rock_state / "d")})
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as members:
        assert "./e/f.txt" in members.getnames()
    answer = await rocklet.post("/upload_dir", params={"path": str(rock_state / "copy")}, content=archive.content)
    assert answer.json()["success"] and (rock_state / "copy/e/f.txt").read_text() == "grün\n"


async def test_a_port_is_reached_by_http_and_websocket(rocklet: httpx.AsyncClient, rock_state: Path) -> None:
    app = FastAPI()

    @app.post("/echo/{rest:path}")
    async def echo(rest: str, body: dict[str, Any], q: str = "") -> dict[str, Any]:
        return {"rest": rest, "q": q, **body}

    @app.websocket("/ws")
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("got " + await websocket.receive_text())
        await websocket.close()

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server, task = await _serve(app, listener)
    answer = await rocklet.post(f"/proxy/{port}/echo/a%20b/c", params={"q": "1 2"}, json={"k": "v"})
    assert answer.json() == {"rest": "a b/c", "q": "1 2", "k": "v"}
    assert (await rocklet.get(f"/proxy/{port}/missing")).status_code == 404
    socket_path = str(rock_state / "r.sock")
    async with websockets.unix_connect(socket_path, f"ws://rocklet/proxy/{port}/ws") as connection:
        await connection.send("hi")
        assert await connection.recv() == "got hi"
    server.should_exit = True
    await task
    answer = await rocklet.get(f"/proxy/{port}/x")
    assert answer.status_code == 511 and f"port {port}" in answer.text


@pytest.mark.parametrize("gone", [False, True])
def test_a_rocklet_ends_when_its_heartbeat_stops_or_vanishes(tmp_path: Path, gone: bool) -> None:
    heartbeat, uds = tmp_path / "heartbeat", tmp_path / "s"
    heartbeat.touch()
    words = [
        sys.executable,
        "-m",
        "rock.rocklet.server",
        "--uds",
        str(uds),
        "--heartbeat",
        str(heartbeat),
        "--patience",
        "3",
    ]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        while not uds.exists() and time.monotonic() < end:
            time.sleep(0.05)
        if gone:
            heartbeat.unlink()
        assert process.wait(30) == 0
    finally:
        process.kill()
