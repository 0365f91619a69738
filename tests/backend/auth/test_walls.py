"""What keeps strangers and accidents out: keys on every route, limits on every size, names that cannot climb."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
import zstandard

from tinker_backend.auth import KeyFile
from tinker_backend.conformance import Suite, wire
from tinker_backend.conformance.client import Run, WireClient

OPEN = {"/api/v1/healthz", "/api/v1/downloads/{token}/archive.tar", "/api/v1/downloads/{token}/{file}"}
OPEN |= {"/api/v1/downloads/{token}/trace.json"}


@pytest.fixture(scope="module")
def alice(engine_backend: Any, door_keys: tuple[Path, dict[str, str]]) -> Iterator[WireClient]:
    client = WireClient(engine_backend.url, door_keys[1]["alice"], deadline=60)
    yield client
    client.close()


@pytest.fixture(scope="module")
def run(alice: WireClient) -> Run:
    return alice.session().run("tiny")


def test_every_operation_wants_a_key(engine_backend: Any, door_keys: tuple[Path, dict[str, str]]) -> None:
    headers = {"x-api-key": door_keys[1]["alice"]}
    document = httpx.get(f"{engine_backend.url}/openapi.json", headers=headers).json()
    operations = [(path, method) for path, methods in document["paths"].items() for method in methods]
    assert len(operations) > 50
    for path, method in operations:
        address = engine_backend.url + path.replace("{", "").replace("}", "")
        for wrong in ({}, {"x-api-key": "tml-" + "x" * 43}, {"authorization": "Bearer tml-x"}):
            answer = httpx.request(method, address, headers=wrong)
            if path in OPEN:
                assert answer.status_code in (200, 403), (method, path)
            else:
                assert answer.status_code == 401, (method, path, answer.status_code)
                assert "www-authenticate" in answer.headers
    assert httpx.get(f"{engine_backend.url}/openapi.json").status_code == 401


def test_a_key_is_exchanged_for_a_token_that_ends_with_it(
    engine_backend: Any, door_keys: tuple[Path, dict[str, str]]
) -> None:
    file = KeyFile(door_keys[0])
    key, _ = file.create("carol")
    client = WireClient(engine_backend.url, key)
    assert client.post("client/config", {"sdk_version": "0.38.0"})["pjwt_auth_enabled"] is True
    token = client.post("auth/token", {})["jwt"]
    bearer = WireClient(engine_backend.url, token)
    assert bearer.get("auth/apikey/me")["name"] == "carol"
    file.revoke("carol")
    answer = bearer.request("GET", "auth/apikey/me")
    assert answer.status_code == 401 and 'error="invalid_token"' in answer.headers["www-authenticate"]
    assert client.request("GET", "auth/apikey/me").status_code == 401


def test_a_server_that_others_can_reach_does_not_start_without_keys(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "engine.yaml").write_text(yaml.safe_dump({"pretrain": str(tiny_model)}))
    (tmp_path / "runtime.yaml").write_text(
        yaml.safe_dump({"backend": {"port": 0}, "runtime": {"engine": "engine.yaml"}})
    )
    serve = [sys.executable, "-m", "tinker_backend", "serve", "--config", str(tmp_path / "runtime.yaml")]
    for host in ("0.0.0.0", "::", "example.org"):
        done = subprocess.run([*serve, "--host", host], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "api_keys_file" in done.stderr, done.stderr


def test_a_key_file_that_others_can_read_stops_the_start(tmp_path: Path, tiny_model: Path) -> None:
    KeyFile(tmp_path / "keys.json").create("alice")
    (tmp_path / "keys.json").chmod(0o644)
    (tmp_path / "engine.yaml").write_text(yaml.safe_dump({"pretrain": str(tiny_model)}))
    document = {"backend": {"port": 0, "api_keys_file": "keys.json"}, "runtime": {"engine": "engine.yaml"}}
    (tmp_path / "runtime.yaml").write_text(yaml.safe_dump(document))
    serve = [sys.executable, "-m", "tinker_backend", "serve", "--config", str(tmp_path / "runtime.yaml")]
    done = subprocess.run(serve, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "chmod 600" in done.stderr


def _raw(url: str, request: bytes) -> bytes:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(request)
        connection.settimeout(10)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while b"\r\n\r\n" not in answer and (chunk := connection.recv(65536)):
                answer += chunk
        return answer


def test_a_body_that_says_it_is_too_large_is_refused_unread(
    engine_backend: Any, door_keys: tuple[Path, dict[str, str]]
) -> None:
    for length in (b"99999999999999", b"-1", b"1e3"):
        head = b"POST /api/v1/asample HTTP/1.1\r\nHost: x\r\nX-API-Key: " + door_keys[1]["alice"].encode()
        answer = _raw(engine_backend.url, head + b"\r\nContent-Length: " + length + b"\r\n\r\n{}")
        assert answer.split(b" ")[1] in (b"400", b"413"), answer[:200]


def test_headers_that_are_too_large_are_refused(alice: WireClient) -> None:
    answer = alice.request("GET", "sessions", headers={"x-filler": "y" * 34_000})
    assert answer.status_code in (400, 413, 431)


def test_a_compressed_bomb_is_refused(alice: WireClient) -> None:
    bomb = zstandard.compress(bytes(600_000_000), 3)
    started = time.monotonic()
    headers = {"content-type": "application/x-protobuf", "content-encoding": "zstd"}
    answer = alice.request("POST", "forward_backward", content=bomb, headers=headers)
    assert answer.status_code == 413 and time.monotonic() - started < 20


@pytest.mark.parametrize("path", ["asample", "forward_backward", "create_session", "sessions/search"])
def test_json_that_is_nested_without_end_is_refused(alice: WireClient, path: str) -> None:
    for text in ("[" * 200_000, '{"a":' * 200_000, "9" * 100_000):
        answer = alice.request("POST", path, content=text, headers={"content-type": "application/json"})
        assert 400 <= answer.status_code < 500


def test_a_batch_beyond_the_limits_is_refused(alice: WireClient, run: Run) -> None:
    tiny = wire.Example([5], {"target_tokens": np.array([6]), "weights": np.array([1.0])})
    body = wire.forward_backward_request(run.id, run.next_seq(), [tiny] * 5000, "cross_entropy")
    headers = {"content-type": "application/x-protobuf"}
    answer = alice.request("POST", "forward_backward", content=body, headers=headers)
    assert answer.status_code == 400 and "4096" in answer.json()["detail"]
    sampler = run.session.sampler(base_model="tiny")
    answer = alice.request("POST", "asample", json=sampler.body([5], 100_000, {"max_tokens": 1}))
    assert answer.status_code == 400 and "num_samples" in answer.json()["detail"]
    run.loss([Suite.example()])


def _link(alice: WireClient, run: Run, name: str) -> str:
    """A link to adapter_config.json of a new external checkpoint."""
    body = {"model_id": run.id, "seq_id": run.next_seq(), "path": name, "type": "save_weights_external"}
    path = alice.promise("save_weights_external", body).result()["path"]
    checkpoint = path.removeprefix(f"tinker://{run.id}/")
    url = alice.get(f"training_runs/{run.id}/checkpoints/{checkpoint}/external_weights_urls")["urls"][
        "adapter_config.json"
    ]
    return str(url if "://" in url else alice.base_url + url)


CLIMBING = [
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/x",
    "/etc/passwd",
    "....//x",
    "a%00b",
    "..\\..\\x",
]


@pytest.mark.parametrize("name", CLIMBING)
def test_names_and_links_cannot_climb_out(
    alice: WireClient, run: Run, door_keys: tuple[Path, dict[str, str]], name: str
) -> None:
    base = _link(alice, run, f"climb{run.seq}").removesuffix("adapter_config.json")
    host = alice.base_url
    # Sent as they are: an HTTP client would tidy the path up before it reaches the server.
    for target in (f"{base}{name}", f"{host}/api/v1/training_runs/{run.id}/checkpoints/weights/{name}/archive"):
        path = target.split("/", 3)[3]
        head = f"GET /{path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {door_keys[1]['alice']}\r\nConnection: close\r\n\r\n"
        answer = _raw(host, head.encode())
        assert answer.split(b" ")[1] in (b"400", b"403", b"404", b"422"), answer[:300]
    for body in ({"tinker_path": f"tinker://{run.id}/weights/{name}"}, {"tinker_path": f"tinker://{name}/weights/x"}):
        assert alice.request("POST", "weights_info", json=body).status_code in (400, 404)


def test_a_link_that_was_altered_is_refused(alice: WireClient, run: Run) -> None:
    url = _link(alice, run, "links")
    assert httpx.get(url).status_code == 200 and json.loads(httpx.get(url).text)["peft_type"] == "LORA"
    token = url.split("/downloads/")[1].split("/")[0]
    for place in (0, len(token) // 2, len(token) - 2):
        other = "A" if token[place] != "A" else "B"
        altered = url.replace(token, token[:place] + other + token[place + 1 :])
        assert httpx.get(altered).status_code == 403
    for nothing in ("x", "A" * 43, "=", "é"):
        assert httpx.get(url.replace(token, nothing)).status_code == 403


def test_keys_are_in_no_log(engine_backend: Any, door_keys: tuple[Path, dict[str, str]]) -> None:
    url, secret = engine_backend.url, "tml-secret-that-must-not-be-logged"
    httpx.get(f"{url}/api/v1/sessions", headers={"x-api-key": secret})
    httpx.get(f"{url}/api/v1/sessions?api_key={secret}")
    for log in (*engine_backend.folder.glob("logs/*"), engine_backend.output):
        text = log.read_text()
        assert secret not in text and not any(key in text for key in door_keys[1].values()), log


def test_a_download_that_is_given_up_leaves_no_thread_behind(tmp_path: Path) -> None:
    from tinker_backend.server.routes.checkpoints import tar_stream

    (tmp_path / "weights.bin").write_bytes(bytes(5_000_000))
    whole = b"".join(tar_stream(tmp_path))
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        assert [(member.name, member.size) for member in tar] == [("weights.bin", 5_000_000)]
    stream = tar_stream(tmp_path)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 10
    while any(thread.name == "archive" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the thread of a download that nobody reads goes on"
        time.sleep(0.05)
