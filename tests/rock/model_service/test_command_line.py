"""Start, stop, next and respond as a person or a sandbox runs them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import httpx
import pytest

from rock.model_service.messages import SessionEnd
from rock.model_service.pull import FRAME
from rock.model_service.watcher import is_running
from rock.sdk.model_service import ModelServiceClient
from rock.sdk.model_service_channel import ChannelError, CommandChannel


def command(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "rock.model_service", *words], capture_output=True, text=True, timeout=60, **options
    )


class LocalCommands:
    """A "sandbox" that runs commands on this machine."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    async def execute(self, words, *, timeout=60):
        self.commands.append(words)
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout)
        return SimpleNamespace(stdout=out.decode(), stderr=err.decode(), exit_code=process.returncode)

    async def write_file(self, path, content):
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)


def test_start_is_quick_and_stop_leaves_no_process_and_no_port(start_model_service):
    started = time.monotonic()
    service = start_model_service()
    assert time.monotonic() - started < 3
    with socket.create_connection(("127.0.0.1", service.port)):
        pass
    assert command("status", "--data-dir", str(service.data_dir)).returncode == 0
    assert command("stop", "--data-dir", str(service.data_dir)).stdout.strip() == "stopped"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", service.port))
    assert not is_running(service.pid)
    assert command("status", "--data-dir", str(service.data_dir)).returncode == 1


def test_a_second_start_on_the_same_folder_and_a_taken_port_are_refused_with_the_fix(running_model_service, tmp_path):
    again = command("start", "--port", "0", "--data-dir", str(running_model_service.data_dir))
    assert again.returncode == 1 and "stop it first" in again.stderr
    taken = command("start", "--port", str(running_model_service.port), "--data-dir", str(tmp_path / "other"))
    assert taken.returncode == 1 and "choose another --port" in taken.stderr


def test_a_state_file_whose_process_is_gone_or_is_somebody_else_neither_blocks_nor_kills(start_model_service):
    service = start_model_service()
    os.kill(service.pid, 9)
    bystander = subprocess.Popen(["sleep", "30"])
    try:
        state = {"pid": bystander.pid, "started": "1", "host": "127.0.0.1", "port": service.port}
        (service.data_dir / "model_service.json").write_text(json.dumps(state))
        assert "no ModelService" in command("stop", "--data-dir", str(service.data_dir)).stdout
        assert bystander.poll() is None
        again = command("start", "--port", "0", "--data-dir", str(service.data_dir))
        assert again.returncode == 0, again.stderr
    finally:
        bystander.kill()
        bystander.wait()


def test_next_and_respond_carry_one_turn_and_print_framed_lines(running_model_service, tmp_path):
    port = str(running_model_service.port)
    with httpx.Client(base_url=running_model_service.url, timeout=30) as client:
        agent = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import httpx,sys; print(httpx.post(sys.argv[1], timeout=30, json={'messages': [{'role': 'user', 'content': 'hi'}]}).text)",
                f"{running_model_service.url}/v1/chat/completions",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        line = command("next", "--port", port, "--timeout", "20").stdout
        assert line.startswith(FRAME) and json.loads(line[len(FRAME) :])["reply"]["index"] == 1
        answer = tmp_path / "answer.json"
        answer.write_text(json.dumps({"choices": [{"message": {"content": "hello"}}]}))
        assert command("respond", "--port", port, "--index", "1", "--file", str(answer)).returncode == 0
        assert json.loads(agent.communicate()[0])["choices"][0]["message"]["content"] == "hello"
        assert command("respond", "--port", port, "--index", "9", "--file", str(answer)).returncode == 1
        assert client.get("/health").json()["requests"] == 1


def test_commands_that_find_no_service_say_what_to_do():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    done = command("next", "--port", port)
    assert done.returncode == 1 and "name its --port" in done.stderr


async def test_the_command_channel_carries_small_and_large_answers(running_model_service):
    sandbox = LocalCommands()
    channel = CommandChannel(sandbox, port=running_model_service.port, python=sys.executable)
    puller = ModelServiceClient(channel)
    async with httpx.AsyncClient(base_url=running_model_service.url, timeout=30) as agent:
        for index, text in ((1, "small 'quoted' $HOME ü"), (2, "ü" * 200_000)):
            call = asyncio.create_task(
                agent.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]})
            )
            request = await puller.next_request(20)
            assert (request.index, request.body["messages"][0]["content"]) == (index, text)
            await puller.respond(index, {"choices": [{"message": {"content": text}}]})
            assert (await call).json()["choices"][0]["message"]["content"] == text
    longest = max(len(word.encode()) for words in sandbox.commands for word in words)
    assert longest < 128 * 1024
    await puller.end("done", 0)
    assert await puller.next_request(5) == SessionEnd("done", 0, 2)


async def test_a_sandbox_that_cannot_run_the_command_is_a_channel_error():
    channel = CommandChannel(LocalCommands(), port=1, python="/nonexistent/python")
    with pytest.raises(ChannelError, match="nonexistent"):
        await channel.exchange("GET", "/health", None, 2)
