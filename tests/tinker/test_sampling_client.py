"""Samples: numbering, retries, back-pressure, checks, clones in other processes."""

from __future__ import annotations

import base64
import json
import math
import pickle
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import tinker
from tinker import _proto, types
from tinker.lib.retry_handler import RetryConfig

PARAMS = types.SamplingParams(max_tokens=3)


def new_client(server: Any, **kwargs: Any) -> tinker.SamplingClient:
    service = tinker.ServiceClient(base_url=server.url, api_key="tml-test")
    return service.create_sampling_client(base_model="Qwen/Qwen3-8B", **kwargs).result(10)


def test_numbers_start_at_zero_for_each_client(server: Any, service: Any, prompt: Any) -> None:
    for _ in range(2):
        client = service.create_sampling_client(base_model="m").result(10)
        for future in [client.sample(prompt, 1, PARAMS) for _ in range(3)]:
            future.result(10)
    sent: dict[str, list[int]] = {}
    for call in server.calls("asample"):
        sent.setdefault(call.json["sampling_session_id"], []).append(call.json["seq_id"])
    assert {session: sorted(ids) for session, ids in sent.items()} == {
        "sess-abc:sample:0": [0, 1, 2],
        "sess-abc:sample:1": [0, 1, 2],
    }


def test_an_own_counter_stop_lists_and_stability_travel(server: Any, prompt: Any) -> None:
    client = new_client(server, record_stability_info=True)
    client.sample(prompt, 1, types.SamplingParams(stop=[])).result(10)
    client.sample(prompt, 1, types.SamplingParams(stop=[1, 2])).result(10)
    client.sample(prompt, 1, types.SamplingParams()).result(10)
    bodies = [call.json for call in server.calls("asample")]
    assert [body["sampling_params"].get("stop") for body in bodies] == [[], [1, 2], None]
    assert all("max_tokens" not in body["sampling_params"] for body in bodies)
    assert all(body["record_stability_info"] is True for body in bodies)


def test_images_in_prompts_are_base64(server: Any, sampling: Any) -> None:
    chunks = [
        types.ImageChunk(data=b"\xff\x00", format="jpeg", expected_tokens=4),
        types.ImageAssetPointerChunk(format="png", location="s3://x"),
        types.DmelChunk(dmel=b"\x01\x01\x01"),
    ]
    sampling.sample(types.ModelInput(chunks=chunks), 1, PARAMS).result(10)
    assert server.calls("asample")[0].json["prompt"]["chunks"] == [
        {"data": "/wA=", "format": "jpeg", "expected_tokens": 4, "type": "image"},
        {"format": "png", "location": "s3://x", "type": "image_asset_pointer"},
        {"dmel": "AQEB", "type": "dmel"},
    ]


def test_every_option_travels(server: Any, mock: Any, sampling: Any, prompt: Any) -> None:
    target = types.TensorData([5, 6], "int64", [2, 3], [0, 1, 2], [1, 2])
    alt = _proto._CLASSES["PromptAltTokens"](
        tokens=_proto.Tensor(dense=np.arange(4, dtype="<i4").tobytes(), dtype=3, shape=[2, 2]),
        logprobs=_proto.Tensor(dense=np.full(4, -1.0, dtype="<f4").tobytes(), dtype=1, shape=[2, 2]),
    )
    scored = _proto.Tensor(dtype=1, shape=[2, 3])
    scored.sparse_csr.values = np.array([-1.5, -2.5], dtype="<f4").tobytes()
    scored.sparse_csr.crow_indices = np.array([0, 1, 2], dtype="<i8").tobytes()
    scored.sparse_csr.col_indices = np.array([1, 2], dtype="<i8").tobytes()
    body = mock.sample_output(
        1,
        [4],
        [math.nan, math.nan, -0.5],
        prompt_alt_tokens=alt,
        target_prompt_logprobs=scored,
        prompt_cache_hit_tokens=2,
    )
    server.script("retrieve_future", mock.Answer(body=body, headers=mock.PROTO_HEADERS))
    answer = sampling.sample(
        prompt,
        1,
        PARAMS,
        include_prompt_logprobs=True,
        topk_sample_logprobs=3,
        target_prompt_logprobs=target,
        prompt_alt_tokens_k=2,
        prompt_logprobs_last_n=1,
    ).result(10)
    sent = server.calls("asample")[0].json
    assert sent["target_prompt_logprobs"] == {
        "data": [5, 6],
        "dtype": "int64",
        "shape": [2, 3],
        "sparse_crow_indices": [0, 1, 2],
        "sparse_col_indices": [1, 2],
    }
    assert (sent["topk_sample_logprobs"], sent["prompt_alt_tokens_k"], sent["prompt_logprobs_last_n"]) == (3, 2, 1)
    assert answer.prompt_logprobs == [None, None, -0.5] and answer.prompt_cache_hit_tokens == 2
    assert answer.prompt_alt_tokens is not None and answer.prompt_alt_tokens.tokens.tolist() == [[0, 1], [2, 3]]
    assert answer.target_prompt_logprobs is not None
    assert answer.target_prompt_logprobs.tolist() == [[0.0, -1.5, 0.0], [0.0, 0.0, -2.5]]


def test_topk_rows_leave_masked_cells_out(server: Any, mock: Any, sampling: Any, prompt: Any) -> None:
    topk = _proto._CLASSES["TopkLogprobs"](
        token_ids=np.array([[7, 0], [0, 0], [8, 9]], dtype="<i4").tobytes(),
        logprobs=np.array([[-1, -99999], [-99999, -99999], [-1, -2]], dtype="<f4").tobytes(),
        k=2,
        length=3,
    )
    body = mock.sample_output(1, [4], topk_prompt_logprobs=topk)
    server.script("retrieve_future", mock.Answer(body=body, headers=mock.PROTO_HEADERS))
    answer = sampling.sample(prompt, 1, PARAMS, topk_prompt_logprobs=2).result(10)
    assert answer.topk_prompt_logprobs == [[(7, -1.0)], None, [(8, -1.0), (9, -2.0)]]


def test_scores_outside_of_the_suffix_are_refused(server: Any, mock: Any, sampling: Any, prompt: Any) -> None:
    body = mock.sample_output(1, [4], [math.nan, -0.5, -0.5])
    server.script("retrieve_future", mock.Answer(body=body, headers=mock.PROTO_HEADERS))
    with pytest.raises(RuntimeError, match="last 1"):
        sampling.compute_logprobs(prompt, prompt_logprobs_last_n=1).result(10)


def test_missing_alternatives_are_refused(sampling: Any, prompt: Any) -> None:
    with pytest.raises(RuntimeError, match="prompt_alt_tokens"):
        sampling.sample(prompt, 1, PARAMS, prompt_alt_tokens_k=2).result(10)


def test_contradicting_options_are_refused_before_sending(server: Any, sampling: Any, prompt: Any) -> None:
    with pytest.raises(ValueError, match="include_prompt_logprobs"):
        sampling.sample(prompt, 1, PARAMS, prompt_logprobs_last_n=1)
    for last_n in (0, 3):
        with pytest.raises(ValueError, match="from 1 to 2"):
            sampling.compute_logprobs(prompt, prompt_logprobs_last_n=last_n)
    assert server.calls("asample") == []


def test_compute_logprobs_scores_the_prompt(server: Any, sampling: Any, prompt: Any) -> None:
    assert sampling.compute_logprobs(prompt).result(10) == [None, -0.25, -0.25]
    body = server.calls("asample")[0].json
    assert (body["num_samples"], body["sampling_params"]["max_tokens"], body["prompt_logprobs"]) == (1, 1, True)


def test_a_promise_without_sequence_ids_is_refused(server: Any, mock: Any, sampling: Any, prompt: Any) -> None:
    server.script("asample", mock.Answer(json={"request_id": "r"}))
    with pytest.raises(AssertionError, match="sample_sequence_ids"):
        sampling.sample(prompt, 1, PARAMS).result(10)


def test_429_pauses_and_sends_the_same_number_again(
    server: Any, mock: Any, sampling: Any, prompt: Any, monkeypatch: Any
) -> None:
    waited = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        sampling.holder.backpressure._paused_until = 0

    monkeypatch.setattr(tinker._pace, "sleep", sleep)
    server.script("asample", *[mock.Answer(429, json={})] * 3)
    sampling.sample(prompt, 1, PARAMS).result(10)
    assert [call.json["seq_id"] for call in server.calls("asample")] == [0] * 4
    assert waited == pytest.approx([1.0] * 3, abs=0.2)
    waited.clear()
    server.script("asample", mock.Answer(429, json={}))
    big = types.ModelInput.from_ints([1] * 14_000)
    sampling.sample(big, 1, PARAMS).result(10)
    assert waited == pytest.approx([5.0], abs=0.3)


def test_after_a_push_back_only_ten_samples_are_sent_at_once(
    server: Any, mock: Any, sampling: Any, prompt: Any
) -> None:
    sampling.holder.connect  # noqa: B018
    sampling.holder.backpressure._last_push_back = time.monotonic()
    gate = threading.Event()
    server.always("asample", lambda call: mock.Answer(500, json={}, wait_for=gate))
    futures = [sampling.sample(prompt, 1, PARAMS) for _ in range(30)]
    server.wait_calls("asample", 10)
    time.sleep(0.3)
    assert len(server.calls("asample")) == 10
    for future in futures:
        future.future().cancel()
    gate.set()


def test_402_is_waited_out_by_samples(server: Any, mock: Any, sampling: Any, prompt: Any, waits: list[float]) -> None:
    server.script("asample", *[mock.Answer(402, json={})] * 2)
    sampling.sample(prompt, 1, PARAMS).result(10)
    assert waits == [5.0, 5.0] and len(server.calls("asample")) == 3


def test_failed_samples_are_not_repeated(server: Any, mock: Any, sampling: Any, prompt: Any) -> None:
    server.script("retrieve_future", mock.Answer(json={"error": "no", "category": "server"}))
    with pytest.raises(tinker.RequestFailedError):
        sampling.sample(prompt, 1, PARAMS).result(10)
    assert len(server.calls("asample")) == 1


def test_without_retry_logic_the_first_error_is_final(server: Any, mock: Any, prompt: Any) -> None:
    client = new_client(server, retry_config=RetryConfig(enable_retry_logic=False))
    server.script("retrieve_future", mock.Answer(410, json={}))
    with pytest.raises(RetryConfig().retryable_exceptions):
        client.sample(prompt, 1, PARAMS).result(10)
    assert len(server.calls("asample")) == 1


def test_the_flag_can_turn_retries_of_samples_off_but_not_of_scores(
    server: Any, mock: Any, prompt: Any, waits: list[float]
) -> None:
    server.flags = {"sample_no_retries": True}
    client = new_client(server)
    server.script("retrieve_future", mock.Answer(410, json={}))
    with pytest.raises(RetryConfig().retryable_exceptions):
        client.sample(prompt, 1, PARAMS).result(10)
    server.script("retrieve_future", mock.Answer(410, json={}))
    assert client.compute_logprobs(prompt).result(10) == [None, -0.25, -0.25]


def test_a_standstill_is_detected(server: Any, mock: Any, prompt: Any) -> None:
    client = new_client(server, retry_config=RetryConfig(progress_timeout=0.3))
    server.always("retrieve_future", mock.Answer(408, json={}, delay=5))
    with pytest.raises(tinker.APIConnectionError, match="progress_timeout"):
        client.sample(prompt, 1, PARAMS).result(5)


def test_the_flag_limits_samples_under_way(server: Any, mock: Any, prompt: Any) -> None:
    server.flags = {"sample_max_concurrent_requests": 3}
    client = new_client(server, retry_config=RetryConfig(max_connections=100))
    gate = threading.Event()
    server.always("retrieve_future", lambda call: mock.Answer(408, json={}, wait_for=gate))
    futures = [client.sample(prompt, 1, PARAMS) for _ in range(10)]
    server.wait_calls("asample", 3)
    time.sleep(0.2)
    assert len(server.calls("asample")) == 3
    for future in futures:
        future.future().cancel()
    gate.set()


def test_a_cancelled_sample_is_cancelled_on_the_server_if_it_wants_to_know(server: Any, mock: Any, prompt: Any) -> None:
    import asyncio

    server.dynamic = {"sample_cancel_enabled": True}
    client = new_client(server)
    server.always("retrieve_future", mock.Answer(408, json={}, delay=1))

    async def impatient() -> None:
        await client.sample(prompt, 1, PARAMS).result_async(timeout=0.3)

    with pytest.raises(TimeoutError):
        asyncio.run(impatient())
    (call,) = server.wait_calls("cancel_future", 1)
    assert call.json == {"request_id": server.calls("retrieve_future")[-1].json["request_id"]}


def test_by_default_the_server_hears_nothing_of_cancelled_samples(server: Any, mock: Any, prompt: Any) -> None:
    client = new_client(server)
    server.always("retrieve_future", mock.Answer(408, json={}, delay=1))
    future = client.sample(prompt, 1, PARAMS)
    server.wait_calls("retrieve_future", 1)
    future.future().cancel()
    time.sleep(0.5)
    assert server.calls("cancel_future") == []


# -- one poll for all samples ------------------------------------------------------------------------------------
def test_one_poller_serves_all_samples(server: Any, mock: Any, prompt: Any) -> None:
    server.flags = {"sample_use_retrieve_futures": True}
    client = new_client(server)
    announced: list[str] = []

    def poll(call: Any) -> Any:
        ready = [request_id for request_id in server.results if request_id not in announced]
        announced.extend(ready)
        completions = [
            {"state": "finished", "request_id": ready_id, "response_payload_uncompressed_size": 60}
            for ready_id in ready
        ]
        return mock.Answer(json={"completions": completions, "cursor": call.json["prev_cursor"] + 1}, delay=0.05)

    server.always("retrieve_futures", poll)
    for future in [client.sample(prompt, 1, PARAMS) for _ in range(20)]:
        assert future.result(10).sequences[0].tokens == [0, 1, 2]
    polls = server.calls("retrieve_futures")
    assert polls[0].json == {
        "target": {"type": "sampling_session", "sampling_session_id": "sess-abc:sample:0", "cloned_sampler_id": 0},
        "prev_cursor": 0,
        "retrieved_request_ids": [],
    }
    assert [call.json["prev_cursor"] for call in polls][:2] == [0, 1]
    assert all(call.json["allow_metadata_only"] is False for call in server.calls("retrieve_future"))
    server.wait_calls("retrieve_futures", 2)
    acknowledged = [name for call in server.calls("retrieve_futures") for name in call.json["retrieved_request_ids"]]
    deadline = time.monotonic() + 3
    while len(set(acknowledged)) < 20 and time.monotonic() < deadline:
        time.sleep(0.02)
        acknowledged = [n for call in server.calls("retrieve_futures") for n in call.json["retrieved_request_ids"]]
    assert set(acknowledged) == set(server.results)
    assert server.calls("retrieve_futures")[-1].json["timeout"] == 0


def test_a_poller_that_is_refused_fails_all_samples(server: Any, mock: Any, prompt: Any) -> None:
    server.flags = {"sample_use_retrieve_futures": True}
    client = new_client(server)
    server.always("retrieve_futures", mock.Answer(403, json={"detail": "no"}))
    for future in [client.sample(prompt, 1, PARAMS) for _ in range(3)]:
        with pytest.raises(tinker.TinkerError, match="polling"):
            future.result(10)
    with pytest.raises(tinker.TinkerError, match="polling"):
        client.sample(prompt, 1, PARAMS).result(10)


def test_a_poller_repeats_what_may_pass(server: Any, mock: Any, prompt: Any, waits: list[float]) -> None:
    server.flags = {"sample_use_retrieve_futures": True}
    client = new_client(server)
    server.script("retrieve_futures", mock.Answer(503), mock.Answer(400, json={}), mock.Answer(400, json={}))
    server.always(
        "retrieve_futures",
        lambda call: mock.Answer(
            json={"completions": [{"state": "failed", "request_id": r} for r in server.results], "cursor": 1}
        ),
    )
    assert client.sample(prompt, 1, PARAMS).result(10).sequences
    assert waits[:3] == [1.0] * 3


# -- other processes -----------------------------------------------------------------------------------------------
CHILD = """
import pickle, sys, tinker
client = pickle.loads(bytes.fromhex(sys.argv[1])) if sys.argv[2] == "pickle" else (
    tinker.SamplingClient.from_sampler_handle(sys.argv[1], api_key="tml-test"))
answer = client.sample(tinker.ModelInput.from_ints([1, 2]), 1, tinker.SamplingParams(max_tokens=3)).result(20)
print(answer.sequences[0].tokens, client.get_base_model())
"""


@pytest.mark.parametrize("way", ["pickle", "handle"])
def test_clients_work_in_other_processes(server: Any, sampling: Any, way: str) -> None:
    text = pickle.dumps(sampling).hex() if way == "pickle" else sampling.get_sampler_handle()
    before = len(server.requests)
    done = subprocess.run([sys.executable, "-c", CHILD, text, way], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[0, 1, 2] Qwen/Qwen3-8B", done.stderr
    paths = [call.path for call in server.requests[before:]]
    assert "client/config" not in paths and "create_session" not in paths  # flags and session came along
    (call,) = server.calls("asample")
    assert call.json["sampling_session_id"] == "sess-abc:sample:0"
    assert 10**9 <= call.json["seq_id"] <= 10**18 and call.json["seq_id"] % 10**9 == 0


def test_a_clone_number_can_come_from_the_server(server: Any, prompt: Any) -> None:
    server.flags = {"sample_join_sampling_session": True}
    clone = pickle.loads(pickle.dumps(new_client(server)))
    clone.sample(prompt, 1, PARAMS).result(10)
    clone.sample(prompt, 1, PARAMS).result(10)
    assert [call.json["seq_id"] for call in server.calls("asample")] == [7 * 10**9, 7 * 10**9 + 1]
    assert len(server.calls("join_sampling_session")) == 1


def test_a_handle_holds_no_credentials(sampling: Any) -> None:
    state = json.loads(base64.urlsafe_b64decode(sampling.get_sampler_handle()))
    assert "tml-test" not in json.dumps(state)
    for bad in ("", "x", base64.urlsafe_b64encode(b"{}").decode()):
        with pytest.raises(ValueError, match="handle"):
            tinker.SamplingClient.from_sampler_handle(bad)


def test_a_future_of_a_client_can_be_pickled(training: Any) -> None:
    future = training.save_weights_and_get_sampling_client()
    assert isinstance(pickle.loads(pickle.dumps(future)), tinker.SamplingClient)


def test_paths_and_models_are_checked(service: Any) -> None:
    with pytest.raises(ValueError, match="model_path or base_model"):
        service.create_sampling_client()
    with pytest.raises(ValueError, match="tinker://"):
        service.create_sampling_client(model_path="/weights")


def test_many_samples_at_once(server: Any, sampling: Any, prompt: Any) -> None:
    futures = [sampling.sample(prompt, 1, PARAMS) for _ in range(300)]
    assert all(future.result(60).sequences[0].tokens == [0, 1, 2] for future in futures)
    assert sorted(call.json["seq_id"] for call in server.calls("asample")) == list(range(300))
