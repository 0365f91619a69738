"""Order by seq_id, idempotency, gaps, batches across runs."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest
import zstandard

from tinker_backend.wire import schema


def test_chunks_may_arrive_in_any_order_and_run_in_the_order_of_their_seq_ids(wire: Any) -> None:
    ordered, shuffled = wire.model(), wire.model()
    promises = {
        run: {
            seq: wire.forward_backward(run, seq, tokens=[seq, seq]) if seq < 4 else wire.optim_step(run, seq)
            for seq in order
        }
        for run, order in ((ordered, (1, 2, 3, 4)), (shuffled, (4, 3, 2, 1)))
    }
    for seq in (1, 2, 3, 4):
        assert wire.result(promises[shuffled][seq]) == wire.result(promises[ordered][seq])


def test_a_promise_is_answered_at_once_even_when_a_lower_seq_id_is_missing(wire: Any) -> None:
    run = wire.model()
    started = time.monotonic()
    wire.forward_backward(run, 2)
    assert time.monotonic() - started < 2
    wire.forward_backward(run, 1)


def test_the_same_seq_id_twice_is_one_operation(wire: Any) -> None:
    run = wire.model()
    first, again = wire.forward_backward(run, 1), wire.forward_backward(run, 1)
    assert first == again
    gradient_once = wire.result(wire.optim_step(run, 2))["metrics"]["grad_norm"]
    other = wire.model()
    wire.forward_backward(other, 1)
    assert wire.result(wire.optim_step(other, 2))["metrics"]["grad_norm"] == gradient_once
    assert wire.forward_backward(run, 1) == first


def test_the_same_request_sent_twice_at_the_same_moment_is_one_operation(wire: Any, shared_backend: Any) -> None:
    run = wire.model()
    answers: list[Any] = []

    def send() -> None:
        body = {"model_id": run, "seq_id": 1, "adam_params": {"learning_rate": 0.1}}
        answers.append(httpx.post(f"{shared_backend.url}/api/v1/optim_step", json=body).json())

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8 and all(answer == answers[0] for answer in answers)
    assert wire.result(answers[0])["metrics"]["steps"] == 1


def test_create_model_twice_is_one_run(wire: Any) -> None:
    session = wire.session()
    body = {"session_id": session, "model_seq_id": 0, "base_model": "fake-model"}
    first = wire.post("create_model", **body)
    assert wire.post("create_model", **body) == first
    assert wire.result(first)["model_id"] == f"{session}:train:0"


def test_a_refused_request_uses_its_seq_id_up(wire: Any) -> None:
    run = wire.model()
    wire.forward_backward(run, 1, _status=400, loss_fn="nonsense")
    wire.post("optim_step", 422, model_id=run, seq_id=2, adam_params={"learning_rate": "fast"})
    wire.forward_backward(run, 3)
    assert wire.result(wire.optim_step(run, 4), deadline=10)["metrics"]["steps"] == 1
    assert "refused" in wire.forward_backward(run, 1, _status=400)["detail"]


def test_a_seq_id_of_another_kind_of_request_is_refused(wire: Any) -> None:
    run = wire.model()
    wire.forward_backward(run, 1)
    answer = wire.http.post("optim_step", json={"model_id": run, "seq_id": 1, "adam_params": {}})
    assert answer.status_code == 400 and "next free one is 2" in answer.json()["detail"]


def test_a_gap_that_is_never_filled_fails_what_waits_behind_it_and_the_run_goes_on(
    make_backend: Any, new_wire: Any
) -> None:
    wire = new_wire(make_backend(limits={"gap_seconds": 0.5}).url)
    run = wire.model()
    stranded = [wire.forward_backward(run, 2), wire.optim_step(run, 3)]
    for promise in stranded:
        failure = wire.result(promise)
        assert failure["category"] == "user" and "seq_id 1" in failure["error"]
    assert "came too late" in wire.forward_backward(run, 1, _status=400)["detail"]
    assert wire.result(wire.optim_step(run, 4))["metrics"]["steps"] == 1


def test_a_failed_operation_does_not_stop_the_next(make_backend: Any, new_wire: Any) -> None:
    wire = new_wire(make_backend({"fault_on_token": 99}).url)
    run = wire.model()
    failed = [wire.forward_backward(run, 1, tokens=[99, 1]), wire.forward_backward(run, 2, tokens=[99, 2])]
    good = wire.optim_step(run, 3)
    assert all(wire.result(promise) == {"error": "this token is bad", "category": "user"} for promise in failed)
    assert wire.result(good)["metrics"]["steps"] == 1


def test_forward_backwards_of_many_runs_share_a_call(make_backend: Any, new_wire: Any) -> None:
    backend = make_backend({"delay_seconds": 0.5})
    wire = new_wire(backend.url)
    session = wire.session()
    runs = [wire.model(session, n) for n in range(8)]
    before = wire.http.get("status").json()["batches"]
    promises = [wire.forward_backward(run, 1) for run in runs]
    for promise in promises:
        wire.result(promise)
    after = wire.http.get("status").json()["batches"]
    assert after["requests"] - before["requests"] == 8
    assert after["calls"] - before["calls"] <= 3


def test_sending_both_before_waiting_is_never_slower(make_backend: Any, new_wire: Any) -> None:
    wire = new_wire(make_backend({"delay_seconds": 0.05}).url)
    times = {}
    for pipelined in (False, True):
        run = wire.model()
        started = time.monotonic()
        for step in range(6):
            forward_backward = wire.forward_backward(run, 2 * step + 1)
            if not pipelined:
                wire.result(forward_backward)
            optim = wire.optim_step(run, 2 * step + 2)
            if pipelined:
                wire.result(forward_backward)
            wire.result(optim)
        times[pipelined] = time.monotonic() - started
    assert times[True] < times[False] * 1.1


def test_zstd_bodies_are_understood_and_bombs_refused(wire: Any) -> None:
    run = wire.model()
    headers = {"content-type": "application/x-protobuf", "content-encoding": "zstd"}
    message = schema.ForwardBackwardRequest(model_id=run, seq_id=1, loss_fn="cross_entropy")
    wire.fill(message, [1, 2, 3])
    body = zstandard.compress(message.SerializeToString())
    answer = wire.http.post("forward_backward", content=body, headers=headers)
    assert answer.status_code == 200 and wire.result(answer.json())["metrics"]["loss:sum"] > 0
    bomb = zstandard.compress(bytes(300 * 1024 * 1024))
    assert wire.http.post("forward_backward", content=bomb, headers=headers).status_code == 413
    assert wire.http.post("forward_backward", content=b"no zstd", headers=headers).status_code == 400


@pytest.mark.parametrize("route", ["forward", "forward_backward"])
def test_json_bodies_of_older_clients_give_the_same_result(wire: Any, route: str) -> None:
    run = wire.model()
    data = [
        {
            "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
            "loss_fn_inputs": {
                "target_tokens": {"data": [2, 3, 4], "dtype": "int64", "shape": [3]},
                "weights": {"data": [1.0, 1.0, 1.0], "dtype": "float32", "shape": [3]},
            },
        }
    ]
    key = "forward_input" if route == "forward" else "forward_backward_input"
    promise = wire.post(route, model_id=run, seq_id=1, **{key: {"data": data, "loss_fn": "cross_entropy"}})
    result = wire.result(promise)
    assert (
        result["metrics"]["loss:sum"]
        == wire.result(wire.forward_backward(run, 2, forward_only=True))["metrics"]["loss:sum"]
    )
    assert len(result["loss_fn_outputs"][0]["logprobs"]["data"]) == 3
    norm = wire.result(wire.optim_step(run, 3))["metrics"]["grad_norm"]
    assert (norm == 0) == (route == "forward")


def test_a_result_can_be_fetched_again_and_by_several_waiters_at_once(wire: Any, shared_backend: Any) -> None:
    run = wire.model()
    promise = wire.forward_backward(run, 2)
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(wire.result(promise))) for _ in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    wire.forward_backward(run, 1)
    for thread in threads:
        thread.join()
    assert len(results) == 5 and all(result == results[0] == wire.result(promise) for result in results)


def test_a_pending_promise_is_answered_with_408_after_the_long_poll(make_backend: Any, new_wire: Any) -> None:
    wire = new_wire(make_backend(limits={"long_poll_seconds": 0.4}).url)
    promise = wire.forward_backward(wire.model(), 2)
    started = time.monotonic()
    answer = wire.http.post("retrieve_future", json={"request_id": promise["request_id"], "allow_metadata_only": True})
    assert answer.status_code == 408 and 0.3 < time.monotonic() - started < 3
    assert answer.json()["type"] == "try_again" and answer.json()["queue_state"] == "active"
