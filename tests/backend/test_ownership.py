"""With API keys every caller sees and touches only what is its own, or published."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

PROMPT = {"chunks": [{"tokens": [1, 2, 3]}]}


@pytest.fixture
def two_callers(make_backend: Any, new_wire: Any, tmp_path: Path) -> Iterator[tuple[Any, Any, str]]:
    """Clients of two owners, and the server's address."""
    keys = tmp_path / "keys.json"
    secrets = []
    for name in ("ann", "bob"):
        command = [sys.executable, "-m", "tinker_backend", "keys", "create", "--file", str(keys), "--name", name]
        secrets.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    backend = make_backend(backend={"api_keys_file": str(keys)})
    yield new_wire(backend.url, secrets[0]), new_wire(backend.url, secrets[1]), backend.url
    for log in (*backend.folder.glob("logs/*"), backend.output):
        text = log.read_text()
        assert not any(secret in text for secret in secrets), f"a key is in {log.name}"


def test_without_a_good_key_nothing_is_served(two_callers: Any) -> None:
    _, _, url = two_callers
    for headers in ({}, {"x-api-key": "tml-wrong"}, {"x-api-key": "eyJhbGciOiJub25lIn0.e30."}):
        for path in ("training_runs", "sessions", "checkpoints", "status", "overview"):
            assert httpx.get(f"{url}/api/v1/{path}", headers=headers).status_code == 401
        answer = httpx.post(f"{url}/api/v1/create_session", json={}, headers=headers)
        assert answer.status_code == 401 and int(answer.headers["content-length"]) > 0
    assert httpx.get(f"{url}/api/v1/healthz").status_code == 200


def test_the_things_of_others_are_out_of_reach(two_callers: Any) -> None:
    ann, bob, _ = two_callers
    session = ann.session()
    run = ann.model(session)
    promise = ann.forward_backward(run, 1)
    path = ann.result(ann.post("save_weights", model_id=run, seq_id=2, path="w"))["path"]
    sampler_path = ann.result(ann.post("save_weights_for_sampler", model_id=run, seq_id=3, path="s"))["path"]
    sampler = ann.post(
        "create_sampling_session", session_id=session, sampling_session_seq_id=0, base_model="fake-model"
    )
    sampler_id = sampler["sampling_session_id"]
    own = bob.session()
    posts: list[tuple[str, dict[str, Any]]] = [
        ("retrieve_future", {"request_id": promise["request_id"]}),
        ("cancel_future", {"request_id": promise["request_id"]}),
        ("get_info", {"model_id": run}),
        ("optim_step", {"model_id": run, "seq_id": 4}),
        ("save_weights", {"model_id": run, "seq_id": 4, "path": "x"}),
        ("save_weights_for_sampler", {"model_id": run, "seq_id": 4, "path": "x"}),
        ("save_weights_external", {"model_id": run, "seq_id": 4, "path": "x"}),
        ("load_weights", {"model_id": run, "seq_id": 4, "path": path}),
        ("load_weights", {"session_id": own, "model_seq_id": 0, "path": path}),
        ("create_model", {"session_id": session, "model_seq_id": 1, "base_model": "fake-model"}),
        ("create_sampling_session", {"session_id": own, "sampling_session_seq_id": 0, "model_path": sampler_path}),
        ("asample", {"sampling_session_id": sampler_id, "seq_id": 0, "prompt": PROMPT}),
        ("asample", {"model_path": sampler_path, "prompt": PROMPT}),
        ("join_sampling_session", {"sampling_session_id": sampler_id}),
        ("retrieve_futures", {"target": {"sampling_session_id": sampler_id}}),
        ("session_heartbeat", {"session_id": session}),
        (f"sessions/{session}/finish", {"reason": {"type": "success"}}),
        ("weights_info", {"tinker_path": path}),
        ("copy_weights", {"source_path": path}),
        (f"training_runs/{run}/checkpoints/weights/w/publish", {}),
    ]
    for route, body in posts:
        assert bob.http.post(route, json=body).status_code == 403, (route, bob.http.post(route, json=body).text)
    for route in (
        f"training_runs/{run}",
        f"samplers/{sampler_id}",
        f"sessions/{session}",
        f"training_runs/{run}/checkpoints",
    ):
        assert bob.http.get(route).status_code == 403, route
    assert bob.http.get(f"sessions/{session}/trace_export").status_code == 403
    assert bob.http.delete(f"training_runs/{run}/checkpoints/weights/w").status_code == 403
    assert bob.http.put(f"training_runs/{run}/checkpoints/weights/w/ttl", json={"ttl_seconds": 5}).status_code == 403
    bob.forward_backward(run, 4, _status=403)
    assert bob.http.get("training_runs").json()["training_runs"] == []
    assert bob.http.get("checkpoints").json()["checkpoints"] == []
    assert bob.http.get("sessions").json()["sessions"] == [own]
    assert bob.post("sessions/search")["sessions"][0]["session_id"] == own
    assert ann.result(ann.optim_step(run, 4))["metrics"]["steps"] == 1


def test_published_weights_can_be_read_but_not_changed_by_others(two_callers: Any) -> None:
    ann, bob, _ = two_callers
    run = ann.model()
    path = ann.result(ann.post("save_weights", model_id=run, seq_id=1, path="w"))["path"]
    url = f"training_runs/{run}/checkpoints/weights/w"
    assert ann.http.post(f"{url}/publish").status_code == 200
    assert bob.post("weights_info", tinker_path=path)["lora_rank"] == 8
    loaded = bob.result(bob.post("load_weights", session_id=bob.session(), model_seq_id=0, path=path))
    assert "model_id" in loaded
    assert bob.http.get(f"training_runs/{run}?access_scope=accessible").status_code == 200
    assert bob.http.delete(url).status_code == bob.http.delete(f"{url}/publish").status_code == 403
    assert ann.http.delete(f"{url}/publish").status_code == 200
    bob.post("weights_info", 403, tinker_path=path)


def test_a_token_stands_for_its_key(two_callers: Any, new_wire: Any) -> None:
    ann, _, url = two_callers
    run = ann.model()
    token = new_wire(url, ann.post("auth/token")["jwt"])
    assert token.post("get_info", model_id=run)["model_id"] == run
    assert ann.http.get("auth/apikey/me").json()["name"] == "ann"
    assert ann.http.delete("auth/apikey/me").status_code == 200
    assert ann.http.get("sessions").status_code == 401


def test_a_server_open_to_others_without_keys_does_not_start(make_backend: Any) -> None:
    with pytest.raises(RuntimeError, match="tinker-backend keys create"):
        make_backend(backend={"host": "0.0.0.0"})
