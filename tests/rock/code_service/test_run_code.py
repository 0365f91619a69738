"""`POST /run_code` over real sandboxes."""

from __future__ import annotations

import asyncio
import base64
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.namespaces
_START_SECONDS = 60.0


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture(scope="module")
def code_url(rock_stack: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a code service on a free port."""
    log = tmp_path_factory.mktemp("code-service") / "log"
    command = [sys.executable, "-m", "rock.cli", "code-service", "start", "--port", "0", "--base-url", rock_stack.url]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, "--memory", "256m", "--pool", "2"], stderr=stream, stdin=subprocess.DEVNULL
        )
    try:
        end = time.monotonic() + _START_SECONDS
        while "listens on http" not in (text := log.read_text()):
            assert process.poll() is None and time.monotonic() < end, text
            time.sleep(0.05)
        yield next(
            word for line in text.splitlines() if "listens on" in line for word in line.split() if "http" in word
        )
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        listed = httpx.get(f"{rock_stack.url}/apis/envs/sandbox/v1/sandboxes", params={"state": "running"}, timeout=30)
        assert listed.json()["result"]["total"] == 0, listed.text


def run(url: str, code: str, **fields: Any) -> dict[str, Any]:
    body = {"code": code, "language": "python", "run_timeout": 20, **fields}
    answer = httpx.post(f"{url}/run_code", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_program_that_ends_well_is_a_success_with_its_output(code_url: str) -> None:
    code = "import helper, sys; print(helper.twice(int(sys.stdin.read()))); open('out/made.txt', 'w').write('made')"
    files = {"helper.py": encoded("def twice(x): return 2 * x"), "out/given.txt": encoded("given")}
    answer = run(code_url, code, files=files, stdin="21", fetch_files=["out/made.txt", "missing.txt"])
    assert answer["status"] == "Success" and answer["message"] == "", answer
    result = answer["run_result"]
    assert (result["status"], result["return_code"], result["stdout"]) == ("Finished", 0, "42\n")
    assert answer["files"] == {"out/made.txt": encoded("made")}
    assert run(code_url, "echo $((6 * 7))", language="bash")["run_result"]["stdout"] == "42\n"


def test_a_program_that_fails_or_takes_too_long_is_failed(code_url: str) -> None:
    wrong = run(code_url, "raise SystemExit('wrong')")
    assert wrong["status"] == "Failed" and wrong["run_result"]["return_code"] == 1
    assert "wrong" in wrong["run_result"]["stderr"]
    start = time.monotonic()
    slow = run(code_url, "print('part', flush=True)\nimport time; time.sleep(60)", run_timeout=1)
    assert slow["status"] == "Failed" and slow["run_result"]["status"] == "TimeLimitExceeded"
    assert slow["run_result"]["stdout"] == "part\n" and time.monotonic() - start < 30


def test_memory_is_limited_by_the_request_and_by_the_sandbox(code_url: str) -> None:
    hungry = "x = bytearray(200 << 20); print(len(x))"
    assert run(code_url, hungry)["status"] == "Success"
    bounded = run(code_url, hungry, memory_limit_MB=100)
    assert bounded["status"] == "Failed" and "MemoryError" in bounded["run_result"]["stderr"]
    assert run(code_url, "x = bytearray(b'1' * (1 << 30)); print(len(x))")["status"] in ("Failed", "SandboxError")


def test_runs_share_nothing_and_reach_no_network(code_url: str) -> None:
    run(code_url, "open('/tmp/trace', 'w').write('x'); open('trace', 'w').write('x')")
    seen = run(code_url, "import os; print(os.path.exists('/tmp/trace'), os.path.exists('trace'))")
    assert seen["run_result"]["stdout"] == "False False\n"
    port = code_url.rsplit(":", 1)[1]
    dial = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
    assert run(code_url, dial)["status"] == "Failed"


async def test_many_runs_at_once_each_get_their_own_answer(code_url: str) -> None:
    async with httpx.AsyncClient(timeout=120) as client:
        bodies = [{"code": f"print({n})", "run_timeout": 20} for n in range(12)]
        answers = await asyncio.gather(*(client.post(f"{code_url}/run_code", json=body) for body in bodies))
    assert [answer.json()["run_result"]["stdout"] for answer in answers] == [f"{n}\n" for n in range(12)]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"language": "cobol"}, "python"),
        ({"files": {"../x": ""}}, "'../x'"),
        ({"files": {"/etc/x": ""}}, "relative"),
        ({"files": {"x": "no base64!"}}, "base64"),
        ({"run_timeout": 0}, "run_timeout"),
    ],
)
def test_bad_requests_name_the_field(code_url: str, fields: dict[str, Any], named: str) -> None:
    answer = httpx.post(f"{code_url}/run_code", json={"code": "", **fields}, timeout=30)
    assert answer.status_code == 422 and named in answer.text


def test_without_an_admin_the_answer_is_a_sandbox_error(tmp_path: Path) -> None:
    from fastapi.testclient import TestClient

    from rock.code_service.app import create_code_app
    from rock.sdk import SandboxConfig

    config = SandboxConfig(base_url="http://127.0.0.1:9", image="local", startup_timeout=5)
    with TestClient(create_code_app(config, 1, 1)) as client:
        answer = client.post("/run_code", json={"code": "print(1)"}).json()
    assert answer["status"] == "SandboxError" and "127.0.0.1:9" in answer["message"]
