"""Sampling through the server: every option, retries, cancel, completions, backpressure."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import httpx
import numpy as np
import pytest

from tinker_backend.wire import schema

PROMPT = {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]}


def open_sampler(wire: Any, session: str | None = None, n: int = 0) -> str:
    body = {"session_id": session or wire.session(), "sampling_session_seq_id": n, "base_model": "fake-model"}
    return str(wire.post("create_sampling_session", **body)["sampling_session_id"])


def proto(wire: Any, promise: Any) -> Any:
    response = schema.SampleResponse()
    response.ParseFromString(wire.result(promise, accept="application/x-protobuf"))
    return response


def test_every_option_comes_back_in_its_place(wire: Any) -> None:
    response = proto(
        wire,
        wire.post(
            "asample",
            sampling_session_id=open_sampler(wire),
            seq_id=0,
            prompt=PROMPT,
            num_samples=3,
            sampling_params={"max_tokens": 4, "seed": 2, "temperature": 0.5, "top_k": 5, "top_p": 0.9, "stop": ["x"]},
            prompt_logprobs=True,
            topk_prompt_logprobs=2,
            topk_sample_logprobs=3,
            target_prompt_logprobs={"data": [4, -1, 6, 7], "dtype": "int64", "shape": [2, 2]},
            prompt_alt_tokens_k=2,
        ),
    )
    assert len(response.sequences) == 3
    assert all(len(s.tokens) == 16 and s.topk_sampled_logprobs.k == 3 for s in response.sequences)
    prompt = np.frombuffer(response.prompt_logprobs, "<f4")
    assert np.isnan(prompt[0]) and not np.isnan(prompt[1:]).any()
    assert (response.topk_prompt_logprobs.k, response.topk_prompt_logprobs.length) == (2, 3)
    target = np.frombuffer(response.target_prompt_logprobs.dense, "<f4").reshape(2, 2)
    assert target[0, 1] == 0 and target[0, 0] < 0
    assert list(response.prompt_alt_tokens.tokens.shape) == [2, 2]


def test_sparse_targets_keep_their_layout(wire: Any) -> None:
    target = {
        "data": [4, 5],
        "dtype": "int64",
        "shape": [2, 3],
        "sparse_crow_indices": [0, 1, 2],
        "sparse_col_indices": [0, 2],
    }
    body = {"sampling_session_id": open_sampler(wire), "seq_id": 0, "prompt": PROMPT}
    response = proto(wire, wire.post("asample", **body, target_prompt_logprobs=target))
    csr = response.target_prompt_logprobs.sparse_csr
    assert np.frombuffer(csr.col_indices, "<i8").tolist() == [0, 2]
    assert np.frombuffer(csr.values, "<f4").size == 2


def test_seq_ids_of_clones_fit_and_count_apart(wire: Any) -> None:
    sampler = open_sampler(wire)
    assert [wire.post("join_sampling_session", sampling_session_id=sampler)["client_counter"] for _ in range(2)] == [
        1,
        2,
    ]
    body = {"sampling_session_id": sampler, "prompt": PROMPT}
    ids = {wire.post("asample", **body, seq_id=clone * 1_000_000_000)["request_id"] for clone in (0, 1, 999_999_999)}
    assert len(ids) == 3


def test_two_samplers_may_use_the_same_seq_ids(wire: Any) -> None:
    session = wire.session()
    results = []
    for n in (0, 1):
        body = {"sampling_session_id": open_sampler(wire, session, n), "seq_id": 0, "sampling_params": {"seed": 1}}
        prompt = {"chunks": [{"tokens": [n + 1]}]}
        results.append(wire.result(wire.post("asample", **body, prompt=prompt))["sequences"])
    assert results[0] != results[1]


def test_a_cancelled_sample_ends_at_once(make_backend: Any, new_wire: Any) -> None:
    wire = new_wire(make_backend({"hang_on_token": 7}).url)
    body = {"sampling_session_id": open_sampler(wire), "seq_id": 0}
    promise = wire.post("asample", **body, prompt={"chunks": [{"tokens": [7]}]})
    results: list[Any] = []
    waiter = threading.Thread(target=lambda: results.append(wire.result(promise)))
    waiter.start()
    time.sleep(0.3)
    assert wire.post("cancel_future", request_id=promise["request_id"]) == {"cancelled": True}
    waiter.join(10)
    assert results == [{"error": "cancelled by the client", "category": "user"}]
    assert wire.post("cancel_future", request_id=promise["request_id"]) == {"cancelled": False}


def test_a_runtime_that_hangs_on_a_call_is_restarted_and_the_call_given_up(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend({"hang_on_token": 7}, runtime={"operation_timeout_seconds": 1})
    wire = new_wire(backend.url)
    body = {"sampling_session_id": open_sampler(wire)}
    stuck = wire.post("asample", **body, seq_id=0, prompt={"chunks": [{"tokens": [7]}]})
    assert "died" in wire.result(stuck)["error"]
    assert "sequences" in wire.result(wire.post("asample", **body, seq_id=1, prompt=PROMPT))


def test_completions_are_reported_by_cursor(wire: Any) -> None:
    sampler = open_sampler(wire)
    body = {"sampling_session_id": sampler, "prompt": PROMPT}
    target = {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}
    first = wire.post("asample", **body, seq_id=0)
    wire.result(first)
    answer = wire.post("retrieve_futures", target=target, prev_cursor=0)
    assert [c["request_id"] for c in answer["completions"]] == [first["request_id"]]
    assert wire.post("retrieve_futures", target=target, prev_cursor=answer["cursor"], timeout=0)["completions"] == []
    arrived: list[Any] = []
    poll = {"target": target, "prev_cursor": answer["cursor"]}
    waiter = threading.Thread(target=lambda: arrived.append(wire.post("retrieve_futures", **poll)))
    waiter.start()
    time.sleep(0.2)
    second = wire.post("asample", **body, seq_id=1)
    waiter.join(10)
    assert [c["request_id"] for c in arrived[0]["completions"]] == [second["request_id"]]
    assert arrived[0]["completions"][0]["state"] == "finished"


def test_completions_go_on_after_the_server_was_killed(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend()
    wire = new_wire(backend.url)
    sampler = open_sampler(wire)
    body = {"sampling_session_id": sampler, "prompt": PROMPT}
    poll = {"target": {"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}}
    promises = [wire.post("asample", **body, seq_id=i) for i in range(3)]
    for promise in promises[:2]:
        wire.result(promise)
    cursor = wire.post("retrieve_futures", **poll, prev_cursor=0)["cursor"]
    wire.result(promises[2])
    backend.kill()
    backend.start()
    last = wire.post("asample", **body, seq_id=3)
    wire.result(last)
    seen = wire.post("retrieve_futures", **poll, prev_cursor=cursor)
    assert {promises[2]["request_id"], last["request_id"]} <= {c["request_id"] for c in seen["completions"]}
    assert wire.post("retrieve_futures", **poll, prev_cursor=seen["cursor"], timeout=0)["completions"] == []


def test_more_samples_than_the_limit_are_put_off_with_429(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend({"sample_seconds": 0.5}, limits={"pending_samples": 3})
    wire = new_wire(backend.url)
    body = {"sampling_session_id": open_sampler(wire), "prompt": PROMPT}
    promises = [wire.post("asample", **body, seq_id=i) for i in range(3)]
    answer = wire.http.post("asample", json=body | {"seq_id": 3})
    assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
    for promise in promises:
        wire.result(promise)
    assert "sequences" in wire.result(wire.post("asample", **body, seq_id=3))


def test_weights_beyond_the_resident_limit_are_read_again_when_needed(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend(limits={"resident_samplers": 2})
    wire = new_wire(backend.url)
    run = wire.model()
    samplers = []
    for n in range(5):
        body = {"model_id": run, "seq_id": 3 * n + 1, "sampling_session_seq_id": n}
        samplers.append(wire.result(wire.post("save_weights_for_sampler", **body))["sampling_session_id"])
        wire.forward_backward(run, 3 * n + 2)
        wire.result(wire.optim_step(run, 3 * n + 3))

    def score(sampler: str, seq_id: int) -> Any:
        body = {"sampling_session_id": sampler, "seq_id": seq_id, "prompt": PROMPT, "prompt_logprobs": True}
        return wire.result(wire.post("asample", **body))["prompt_logprobs"]

    first = [score(sampler, 0) for sampler in samplers]
    assert len({tuple(x[1:]) for x in first}) == 5
    assert [score(sampler, 1) for sampler in samplers] == first
    assert wire.http.get("status").json()["resident_samplers"] <= 3


@pytest.mark.parametrize("field", ["base_model", "model_path"])
def test_a_sample_may_name_its_weights_itself(wire: Any, field: str) -> None:
    run = wire.model()
    path = wire.result(wire.post("save_weights_for_sampler", model_id=run, seq_id=1, path="s"))["path"]
    value = {"base_model": "fake-model", "model_path": path}[field]
    assert "sequences" in wire.result(wire.post("asample", prompt=PROMPT, **{field: value}))


def pending_samples(wire: Any) -> int:
    return int(wire.http.get("status").json()["pending"]["samples"])


def test_samples_of_a_vanished_client_are_cancelled_and_those_of_a_living_one_go_on(
    make_backend: Any, new_wire: Any
) -> None:
    backend = make_backend({"sample_seconds": 60}, limits={"session_lapse_seconds": 2})
    wire = new_wire(backend.url)
    gone, beating, polling = wire.session(), wire.session(), wire.session()
    promises = {
        session: wire.post("asample", sampling_session_id=open_sampler(wire, session), seq_id=0, prompt=PROMPT)
        for session in (gone, beating, polling)
    }
    poll = threading.Thread(target=lambda: poll_for(new_wire(backend.url), promises[polling], 6), daemon=True)
    poll.start()
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        wire.post("session_heartbeat", session_id=beating)
        time.sleep(0.3)
    assert pending_samples(wire) == 2
    assert wire.result(promises[gone]) == {
        "error": "cancelled: its client gave no sign of life for 2 s",
        "category": "user",
    }
    poll.join()


def poll_for(wire: Any, promise: Any, seconds: float) -> None:
    """Polls as an SDK does, each time a little."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            wire.http.post("retrieve_future", json={"request_id": promise["request_id"]}, timeout=0.5)
        except httpx.TimeoutException:
            continue


def test_a_server_that_was_stopped_does_not_take_its_clients_for_vanished(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend({"sample_seconds": 60}, limits={"session_lapse_seconds": 4})
    wire = new_wire(backend.url)
    session = wire.session()
    wire.post("asample", sampling_session_id=open_sampler(wire, session), seq_id=0, prompt=PROMPT)
    backend.process.send_signal(signal.SIGSTOP)  # a closed laptop
    time.sleep(6)
    backend.process.send_signal(signal.SIGCONT)
    time.sleep(3)  # a heartbeat may be that far away
    wire.post("session_heartbeat", session_id=session)
    assert pending_samples(wire) == 1


def test_the_time_of_a_vanished_client_begins_anew_with_the_server(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend({"sample_seconds": 60}, limits={"session_lapse_seconds": 4})
    wire = new_wire(backend.url)
    wire.post("asample", sampling_session_id=open_sampler(wire), seq_id=0, prompt=PROMPT)
    backend.kill()
    time.sleep(4)
    backend.start()
    assert pending_samples(wire) == 1
    deadline = time.monotonic() + 15
    while pending_samples(wire):
        assert time.monotonic() < deadline
        time.sleep(0.2)
