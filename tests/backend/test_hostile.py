"""Clients that are odd or mean no good: what they send is answered in words, and harms nobody, themselves included."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

SAMPLER = {"sampling_session_seq_id": 0, "base_model": "fake-model"}
PROMPT = {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]}


def post(wire: Any, route: str, text: str) -> Any:
    """A body as it stands, which general clients would not send."""
    return wire.http.post(route, content=text.encode(), headers={"content-type": "application/json"})


def raw(port: int, data: bytes) -> bytes:
    """The beginning of the answer to bytes that are hardly HTTP."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(data)
        return connection.recv(200)


@pytest.mark.parametrize(
    ("route", "text"),
    [
        ("create_session", r'{"tags": ["\ud800"], "sdk_version": "1"}'),
        ("create_session", r'{"tags": [], "sdk_version": "1", "display_name": "a\udfff"}'),
        ("create_session", r'{"tags": [], "sdk_version": "1", "user_metadata": {"\udfff": 1}}'),
        ("save_weights", r'{"model_id": "\ud800", "path": "\ud800"}'),
        ("retrieve_future", r'{"request_id": "\ud83d and no more"}'),
    ],
)
def test_half_a_surrogate_pair_is_refused_in_words(wire: Any, route: str, text: str) -> None:
    answer = post(wire, route, text)
    assert answer.status_code == 422 and "surrogate" in answer.json()["detail"]


def test_whole_surrogate_pairs_are_text(wire: Any) -> None:
    text = r'{"tags": ["\ud83d\ude00", "\\ud800"], "sdk_version": "1"}'
    assert post(wire, "create_session", text).status_code == 200


def test_a_refused_body_with_broken_text_uses_its_seq_id_up(wire: Any) -> None:
    run = wire.model()
    text = json.dumps({"model_id": run, "seq_id": 1, "path": "x"})[:-1] + r', "user_metadata": {"a": "\ud800"}}'
    assert post(wire, "save_weights", text).status_code == 422
    assert wire.result(wire.optim_step(run, 2), deadline=5)["metrics"]["steps"] == 1


@pytest.mark.parametrize("seq_id", [0, -1, 2**31, 2**63, 2**64, 10**40])
def test_a_seq_id_that_no_request_may_carry_does_not_spoil_the_run(wire: Any, seq_id: int) -> None:
    run = wire.model()
    answer = wire.http.post("optim_step", json={"model_id": run, "seq_id": seq_id, "adam_params": {}})
    assert answer.status_code == 422
    unnumbered = wire.post("optim_step", model_id=run, adam_params={"learning_rate": 0.1})
    assert unnumbered["request_id"] == f"{run}:1"
    assert wire.result(unnumbered)["metrics"]["steps"] == 1


def test_numbers_beyond_all_bounds_are_refused_by_name(wire: Any) -> None:
    session = wire.session()
    body = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "fake-model"}
    sampler = wire.post("create_sampling_session", **body)["sampling_session_id"]
    for clone in (-1, 2**70):
        target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": clone}
        answer = wire.post("retrieve_futures", _status=422, target=target, timeout=0)
        assert "cloned_sampler_id" in answer["detail"]
    for seq_id in (-1, 2**63, 2**70):
        answer = wire.post("asample", _status=422, sampling_session_id=sampler, seq_id=seq_id, prompt=PROMPT)
        assert "seq_id" in answer["detail"]


def test_only_data_may_be_large(make_backend: Any, new_wire: Any) -> None:
    wire = new_wire(make_backend(limits={"small_body_bytes": 10_000}).url)
    run = wire.model()
    answer = wire.post("create_session", _status=413, tags=["x" * 20_000], sdk_version="1")
    assert "10000" in answer["detail"]
    pieces = (piece for piece in [b'{"tags": ["', b"x" * 20_000, b'"]}'])
    chunked = wire.http.post("create_session", content=pieces, headers={"content-type": "application/json"})
    assert chunked.status_code == 413
    # Datums and prompts are data.
    assert "loss_fn_outputs" in wire.result(wire.forward_backward(run, 1, tokens=[1] * 500))


def test_an_answer_does_not_repeat_megabytes(wire: Any) -> None:
    answer = wire.http.post("retrieve_future", json={"request_id": "x" * 1_000_000})
    assert answer.status_code == 404 and len(answer.content) < 20_000


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"POST /api/v1/create_session HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /api/v1/create_session HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST /api/v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /api/v1/create_session HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_bytes_that_are_hardly_http_are_refused(wire: Any, shared_backend: Any, data: bytes) -> None:
    assert raw(shared_backend.port, data).startswith(b"HTTP/1.1 4")
    assert wire.http.get("healthz").status_code == 200


def test_a_body_that_does_not_come_ends_its_connection(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend(limits={"body_seconds": 1})
    head = b"POST /api/v1/create_session HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", backend.port), timeout=10) as connection:
        connection.sendall(head)
        answer = b""
        while piece := connection.recv(1000):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 408") and b"within 1 s" in answer
    # A complete body may be worked on for longer.
    wire = new_wire(backend.url)
    target = wire.post("create_sampling_session", session_id=wire.session(), **SAMPLER)["sampling_session_id"]
    poll = {"target": {"type": "sampling_session", "sampling_session_id": target}, "timeout": 2}
    assert wire.post("retrieve_futures", **poll)["completions"] == []
