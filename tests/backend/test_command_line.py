"""``tinker-backend``: what it prints, how it ends, what it says about bad configuration."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tinker_backend", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_server_and_runtime_in_order(make_backend: Any, new_wire: Any, number: int, code: int) -> None:
    backend = make_backend()
    wire = new_wire(backend.url)
    model = wire.model()
    promise = wire.forward_backward(model, 1)
    wire.result(promise)
    pid = backend.runtime_pid()
    started = time.monotonic()
    backend.process.send_signal(number)
    assert backend.process.wait(20) == code
    assert time.monotonic() - started < 15
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    backend.start()
    assert "metrics" in wire.result(promise)


def test_clients_that_wait_when_the_server_ends_are_told_to_ask_again(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend(engine={"delay_seconds": 30})
    wire = new_wire(backend.url)
    session = wire.session()
    promise = wire.post("create_model", session_id=session, model_seq_id=0, base_model="fake-model")

    def poll() -> set[tuple[int, str]]:
        answers = set()
        while True:  # until nobody listens any more
            try:
                answer = wire.http.post("retrieve_future", json={"request_id": promise["request_id"]})
            except httpx.TransportError:
                return answers
            answers.add((answer.status_code, answer.json()["type"]))

    with ThreadPoolExecutor() as pool:
        polling = pool.submit(poll)
        time.sleep(1)
        backend.process.send_signal(signal.SIGINT)
        assert polling.result(2.5) == {(408, "try_again")}
    assert backend.process.wait(20) == 130
    assert "Traceback" not in backend.output.read_text()


def test_the_configuration_is_printed_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "engine.yaml").write_text("pretrain: x\n")
    url = "postgresql+psycopg://user:hunter2@127.0.0.1:1/db?connect_timeout=5"
    (tmp_path / "runtime.yaml").write_text(f"backend: {{port: 0}}\nledger: {{url: '{url}'}}\n")
    done = run("serve", "--config", str(tmp_path / "runtime.yaml"))
    assert done.returncode == 1
    assert '"host": "127.0.0.1"' in done.stdout and "***@127.0.0.1:1" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr
    (tmp_path / "runtime.yaml").write_text("backend: {port: 0}\nledger: {url: 'nodriver://user:hunter2@host/db'}\n")
    done = run("serve", "--config", str(tmp_path / "runtime.yaml"))
    assert "nodriver://***@host/db" in done.stderr and "hunter2" not in done.stdout + done.stderr


def test_status_and_checkpoints_show_a_running_server(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend()
    wire = new_wire(backend.url)
    saved = wire.result(wire.post("save_weights", model_id=wire.model(), seq_id=1, path="one"))
    status = json.loads(run("status", "--base-url", backend.url).stdout)
    assert status["runtime"]["state"] == "ready" and status["runtime"]["models"][0]["name"] == "fake-model"
    assert saved["path"] in run("checkpoints", "--base-url", backend.url).stdout
    listed = json.loads(run("checkpoints", "--base-url", backend.url, "--json").stdout)
    assert listed[0]["tinker_path"] == saved["path"]
    backend.stop()
    failed = run("status", "--base-url", backend.url)
    assert failed.returncode == 1 and "is the server running?" in failed.stderr


def test_a_command_without_the_right_key_says_where_the_key_goes(make_backend: Any, tmp_path: Path) -> None:
    made = run("keys", "create", "--file", str(tmp_path / "keys.json"), "--name", "me")
    backend = make_backend(backend={"api_keys_file": str(tmp_path / "keys.json")})
    for given, sentence in (({}, "wants a key"), ({"TINKER_API_KEY": "tml-wrong"}, "knows no such key")):
        refused = run("checkpoints", "--base-url", backend.url, **given)
        (line,) = refused.stderr.splitlines()
        assert refused.returncode == 1 and sentence in line and "set TINKER_API_KEY" in line
    assert run("checkpoints", "--base-url", backend.url, TINKER_API_KEY=made.stdout.strip()).returncode == 0


def test_doctor_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "engine.yaml").write_text("pretrain: x\n")
    good = tmp_path / "runtime.yaml"
    good.write_text("backend: {port: 0}\n")
    assert "ok" in run("doctor", "--config", str(good)).stdout
    bad = tmp_path / "bad.yaml"
    bad.write_text("backend: {port: 0, host: 0.0.0.0}\n")
    done = run("doctor", "--config", str(bad))
    assert done.returncode == 1 and "keys create" in done.stdout


def test_doctor_looks_at_the_model_and_at_the_runtimes_python(tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "runtime.yaml"
    path.write_text(f"backend: {{port: 0}}\nruntime: {{python: {bare}}}\ncheckpoints: {{folder: ../kept}}\n")
    (tmp_path / "config" / "engine.yaml").write_text("pretrain: /nowhere/model\n")
    done = run("doctor", "--config", str(path))
    assert done.returncode == 1
    assert "FAIL  pretrain '/nowhere/model': no such folder" in done.stdout
    assert f"FAIL  {bare} lacks tinker_backend, torch, safetensors" in done.stdout
    assert f"ok    checkpoints folder {tmp_path / 'kept'} can be written" in done.stdout
    (tmp_path / "config" / "engine.yaml").write_text("pretrain: HuggingFaceTB/SmolLM2-135M-Instruct\n")
    path.write_text("backend: {port: 0}\n")
    assert "ok    model HuggingFaceTB/SmolLM2-135M-Instruct: " in run("doctor", "--config", str(path)).stdout


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("logs: {folder: /proc/nowhere}", "logs.folder /proc/nowhere cannot be written"),
        ("ledger: {url: 'sqlite:////proc/nowhere/ledger.db'}", "the folder /proc/nowhere of the ledger cannot be made"),
    ],
)
def test_a_folder_that_cannot_be_made_is_told_in_one_sentence(tmp_path: Path, section: str, message: str) -> None:
    (tmp_path / "engine.yaml").write_text("pretrain: x\n")
    (tmp_path / "runtime.yaml").write_text(f"backend: {{port: 0}}\nruntime: {{command: [sleep, '60']}}\n{section}\n")
    done = run("serve", "--config", str(tmp_path / "runtime.yaml"))
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith(f"Error: {message}") and "Traceback" not in done.stderr


def test_a_port_in_use_is_named(make_backend: Any) -> None:
    backend = make_backend()
    done = run("serve", "--config", str(backend.folder / "runtime.yaml"), "--port", str(backend.port))
    assert done.returncode == 1 and f"127.0.0.1:{backend.port}" in done.stderr and "in use" in done.stderr


def test_a_server_that_cannot_start_leaves_no_runtime_behind(tmp_path: Path) -> None:
    # The runtime is started before the server has loaded its own libraries, so it is there when the server gives up.
    pid_file = tmp_path / "pid"
    command = f"['/bin/sh', '-c', 'echo $$ > {pid_file}; exec sleep 120']"
    (tmp_path / "runtime.yaml").write_text(
        f"backend: {{port: 0}}\nruntime: {{command: {command}}}\ncheckpoints: {{folder: /proc/nowhere}}\n"
        "ledger: {url: memory}\n"
    )
    done = run("serve", "--config", str(tmp_path / "runtime.yaml"))
    assert done.returncode == 1 and "/proc/nowhere" in done.stderr
    pid, deadline = int(pid_file.read_text()), time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the runtime outlives its server"
        time.sleep(0.05)


def test_a_mistake_in_a_configuration_file_is_named_with_its_fix(tmp_path: Path) -> None:
    (tmp_path / "engine.yaml").write_text("pretrain: x\nactor_trian: {}\n")
    (tmp_path / "runtime.yaml").write_text("backend: {port: 0}\n")
    done = run("serve", "--config", str(tmp_path / "runtime.yaml"))
    assert done.returncode == 1
    assert "engine.yaml" in done.stderr and "did you mean 'actor_train'" in done.stderr


def test_metrics_and_console_are_served(wire: Any, shared_backend: Any) -> None:
    import httpx

    wire.result(wire.forward_backward(wire.model(), 1))
    text = httpx.get(f"{shared_backend.url}/metrics").text
    assert 'tinker_operations_total{kind="forward_backward",outcome="ok"}' in text and "tinker_runtime_up 1.0" in text
    assert "<title>tinker-backend</title>" in httpx.get(f"{shared_backend.url}/console").text
    overview = wire.http.get("overview").json()
    assert overview["runs"] and overview["status"]["runtime"]["state"] == "ready"
