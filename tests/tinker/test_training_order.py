"""Sequence ids, chunks, reducers."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import tinker
from tinker import _chunks, _encode, types
from tinker.types import ForwardBackwardOutput, TensorData


def seq_ids(server: Any) -> list[int]:
    found = []
    for call in server.requests:
        if call.path == "forward_backward":
            found.append(call.fb.seq_id)
        elif call.path in ("optim_step", "save_weights", "save_weights_for_sampler"):
            found.append(call.json["seq_id"])
    return found


def test_calls_are_numbered_in_program_order(server: Any, training: Any, datum: Any) -> None:
    futures = []
    for _ in range(5):
        futures.append(training.forward_backward([datum()], "cross_entropy"))
        futures.append(training.optim_step(types.AdamParams()))
    futures.append(training.save_state("a"))
    futures.append(training.save_weights_for_sampler("b"))
    futures.append(training.save_weights_and_get_sampling_client())
    for future in futures:
        future.result(10)
    assert seq_ids(server) == list(range(1, 14))


def test_a_request_goes_out_when_the_one_before_was_answered(server: Any, mock: Any, training: Any, datum: Any) -> None:
    server.always("retrieve_future", lambda call: mock.Answer(408, json={}, delay=0.05))  # results never come
    server.always("optim_step", lambda call: mock.Answer(json={"request_id": f"r{call.json['seq_id']}"}, delay=0.1))
    for _ in range(4):
        training.optim_step(types.AdamParams())
    calls = server.wait_calls("optim_step", 4)
    time.sleep(0.15)
    for earlier, later in zip(calls, calls[1:], strict=False):
        assert later.received_at >= earlier.answered_at


def test_a_refused_request_uses_up_its_number(server: Any, mock: Any, training: Any, datum: Any) -> None:
    server.script("forward_backward", mock.Answer(422, json={"detail": "no"}))
    refused = training.forward_backward([datum()], "cross_entropy")
    after = training.optim_step(types.AdamParams())
    with pytest.raises(tinker.UnprocessableEntityError):
        refused.result(10)
    after.result(10)
    assert seq_ids(server) == [1, 2]


def test_data_that_cannot_be_encoded_uses_no_number(server: Any, training: Any, datum: Any) -> None:
    pointer = types.ImageAssetPointerChunk(format="png", location="s3://x", expected_tokens=1)
    bad = types.Datum(types.ModelInput(chunks=[pointer]), {"target_tokens": [1], "weights": [1.0]})
    training.forward_backward([datum()], "cross_entropy").result(10)
    with pytest.raises(ValueError, match="ImageAssetPointerChunk"):
        training.forward_backward([bad], "cross_entropy").result(10)
    training.optim_step(types.AdamParams()).result(10)
    assert seq_ids(server) == [1, 2]


def test_a_cancelled_request_does_not_block_the_next(server: Any, mock: Any, training: Any) -> None:
    gate = threading.Event()
    server.script("optim_step", mock.Answer(json={"request_id": "x"}, wait_for=gate))
    first = training.optim_step(types.AdamParams())
    second = training.optim_step(types.AdamParams())
    third = training.optim_step(types.AdamParams())
    assert second.future().cancel()
    gate.set()
    assert third.result(10).metrics
    first.future().cancel()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("hello", r"data\[0\] must be a tinker.Datum, got str"),
        ([{"tokens": [1]}], r"data\[0\] must be a tinker.Datum, got dict"),
        ([types.Datum(types.ModelInput.from_ints([1, 2**40]), {"target_tokens": [1, 2]})], r"data\[0\].*1099511627776"),
    ],
)
def test_what_can_never_be_sent_is_told_at_once(server: Any, training: Any, bad: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        training.forward_backward(bad, "cross_entropy")
    with pytest.raises(TypeError, match=r"loss_fn_config\['beta'\] must be a number or text, got None"):
        training.forward_backward([_plain()], "dro", {"beta": None})
    with pytest.raises(TypeError, match=r"\[datum\]"):
        training.forward(_plain(), "cross_entropy")
    training.optim_step(types.AdamParams()).result(10)
    assert seq_ids(server) == [1]


def _plain() -> types.Datum:
    return types.Datum(types.ModelInput.from_ints([1]), {"target_tokens": [2], "weights": [1.0]})


def test_a_request_that_cannot_be_made_leaves_no_gap(server: Any, training: Any) -> None:
    refused = training.save_state(5)
    also_refused = training.optim_step("adam")
    after = training.optim_step(types.AdamParams())
    for future in (refused, also_refused):
        with pytest.raises(ValueError, match="validation error"):
            future.result(10)
    after.result(10)
    assert seq_ids(server) == [1]


def test_a_request_cancelled_before_its_turn_leaves_no_gap(server: Any, mock: Any, training: Any) -> None:
    gate = threading.Event()
    server.script("optim_step", mock.Answer(json={"request_id": "x"}, wait_for=gate))
    training.optim_step(types.AdamParams())
    second = training.save_state("never")
    third = training.optim_step(types.AdamParams())
    assert second.future().cancel()
    gate.set()
    third.result(10)
    assert seq_ids(server) == [1, 2] and not server.calls("save_weights")


def test_a_request_cancelled_on_its_way_arrives_before_the_next_leaves(server: Any, mock: Any, training: Any) -> None:
    gate = threading.Event()
    server.script("optim_step", mock.Answer(503), mock.Answer(json={"request_id": "x"}, wait_for=gate))
    first = training.optim_step(types.AdamParams())
    second = training.save_state("next")
    server.wait_calls("optim_step", 1)
    assert first.future().cancel()
    server.wait_calls("optim_step", 2)
    assert not server.calls("save_weights")
    gate.set()
    second.result(10)
    assert seq_ids(server) == [1, 1, 2]


def test_repeated_posts_carry_the_same_number_and_content(
    server: Any, mock: Any, training: Any, datum: Any, waits: list[float]
) -> None:
    server.script("forward_backward", *[mock.Answer(500)] * 12)
    training.forward_backward([datum()], "cross_entropy").result(10)
    assert len({call.body for call in server.calls("forward_backward")}) == 1


def test_empty_data_is_refused(training: Any) -> None:
    for method in (training.forward, training.forward_backward):
        with pytest.raises(ValueError, match="Datum"):
            method([], "cross_entropy")


def test_the_first_chunk_goes_last(server: Any, mock: Any, datum: Any) -> None:
    server.flags = {"fwdbwd_max_chunk_len": 2}
    client = tinker.ServiceClient(base_url=server.url).create_lora_training_client("m").result(10)
    server.always(
        "forward_backward",
        lambda call: server.promise(("fb", call.fb.seq_id), server.fb_result(call)),
    )
    result = client.forward_backward([datum(length) for length in range(1, 7)], "cross_entropy").result(10)
    calls = server.calls("forward_backward")
    assert calls[-1].fb.seq_id == 1 and sorted(call.fb.seq_id for call in calls[:-1]) == [2, 3]
    assert calls[-1].received_at >= max(call.answered_at for call in calls[:-1])
    assert [len(output["logprobs"]) for output in result.loss_fn_outputs] == [1, 2, 3, 4, 5, 6]
    assert result.metrics == {"loss:sum": 9.0}
    client.optim_step(types.AdamParams()).result(10)
    assert server.calls("optim_step")[0].json["seq_id"] == 4


def test_parallel_chunks_travel_on_connections_of_their_own(server: Any, mock: Any, datum: Any) -> None:
    server.flags = {"fwdbwd_max_chunk_len": 1}
    client = tinker.ServiceClient(base_url=server.url).create_lora_training_client("m").result(10)
    server.always(
        "forward_backward",
        lambda call: mock.Answer(json=server.promise(("fb", call.fb.seq_id), server.fb_result(call)).json, delay=0.2),
    )
    client.forward_backward([datum() for _ in range(5)], "cross_entropy").result(10)
    parallel = [call for call in server.calls("forward_backward") if call.fb.seq_id > 1]
    assert len({call.connection for call in parallel}) == 4
    assert max(call.received_at for call in parallel) < min(call.answered_at for call in parallel)


def test_serial_mode_keeps_the_order(server: Any, datum: Any) -> None:
    server.flags = {"fwdbwd_max_chunk_len": 1, "parallel_fwdbwd_chunks": False}
    client = tinker.ServiceClient(base_url=server.url).create_lora_training_client("m").result(10)
    client.forward_backward([datum() for _ in range(3)], "cross_entropy").result(10)
    calls = server.calls("forward_backward")
    assert [call.fb.seq_id for call in calls] == [1, 2, 3]


def test_compressed_requests_when_the_server_wants_them(server: Any, mock: Any, datum: Any) -> None:
    import zstandard

    from tinker import _proto

    server.flags = {"proto_compress_fwdbwd": True}
    client = tinker.ServiceClient(base_url=server.url).create_lora_training_client("m").result(10)
    server.script("forward_backward", mock.Answer(json={"request_id": "r"}))
    server.results["r"] = mock.Answer(body=mock.fb_output([[0.0]]), headers=mock.PROTO_HEADERS)
    client.forward_backward([datum()], "cross_entropy").result(10)
    (call,) = server.calls("forward_backward")
    assert call.headers["content-encoding"] == "zstd"
    message = _proto.ForwardBackwardRequest.FromString(zstandard.ZstdDecompressor().decompress(call.body))
    assert message.loss_fn == "cross_entropy"


# -- cutting -----------------------------------------------------------------------------------------------------
def test_chunks_are_cut_by_count_and_by_bytes(datum: Any) -> None:
    size = _encode.datum_bytes(datum())
    assert size == 4 * 4 + 4 * 8 + 4 * 4
    data = [datum() for _ in range(7)]
    assert [len(c) for c in _chunks.plan_chunks(data, max_bytes=10**9, max_datums=3)] == [3, 3, 1]
    assert [len(c) for c in _chunks.plan_chunks(data, max_bytes=2 * size, max_datums=100)] == [2, 2, 2, 1]
    assert [len(c) for c in _chunks.plan_chunks(data, max_bytes=1, max_datums=100)] == [1] * 7


def test_sizes_of_images_and_sparse_tensors() -> None:
    image = types.ImageChunk(data=b"x" * 10, format="png")
    pointer = types.ImageAssetPointerChunk(format="png", location="abc")
    dmel = types.DmelChunk(dmel=b"1234")
    assert _encode.input_bytes(types.ModelInput(chunks=[image, pointer, dmel])) == 17
    sparse = TensorData([5, 6], "int64", [2, 3], [0, 1, 2], [1, 2])
    assert sparse.byte_size == 2 * 8 + 5 * 8


# -- reducers ----------------------------------------------------------------------------------------------------
def result(count: int, **metrics: float) -> ForwardBackwardOutput:
    tensor = TensorData.from_numpy(np.zeros(1, dtype=np.float32))
    return ForwardBackwardOutput("ArrayRecord", [{"logprobs": tensor}] * count, dict(metrics))


@pytest.mark.parametrize(
    ("reducer", "expected"),
    [("sum", 9.0), ("min", 1.0), ("max", 5.0), ("mean", (1 * 1 + 3 * 2 + 5 * 1) / 4), ("slack", 5 - 3.0)],
)
def test_metrics_of_chunks_are_reduced(reducer: str, expected: float) -> None:
    key = f"x:{reducer}"
    combined = _chunks.combine([result(1, **{key: 1.0}), result(2, **{key: 3.0}), result(1, **{key: 5.0})])
    assert combined.metrics == {key: pytest.approx(expected)}
    assert len(combined.loss_fn_outputs) == 4


def test_hashes_add_up_modulo_two_to_the_64() -> None:
    half = float(2**63)
    assert _chunks.combine([result(1, **{"h:hash2": half}), result(1, **{"h:hash2": half})]).metrics == {"h:hash2": 0}
    assert _chunks.combine([result(1, **{"h:hash2": -1.0})]).metrics == {"h:hash2": 2**64 - 1}


def test_unique_metrics_keep_every_value() -> None:
    combined = _chunks.combine([result(1, **{"u:unique": v}) for v in (1.0, 2.0, 3.0)])
    assert combined.metrics == {"u:unique": 1.0, "u:unique_1": 2.0, "u:unique_2": 3.0}


def test_metrics_that_only_some_chunks_have_and_unknown_reducers_are_dropped() -> None:
    combined = _chunks.combine(
        [result(1, **{"a:sum": 1, "b:sum": 1, "c:what": 1}), result(1, **{"a:sum": 1, "c:what": 1})]
    )
    assert combined.metrics == {"a:sum": 2}


@pytest.mark.parametrize("key", ["loss", "a:b:c"])
def test_metric_keys_need_one_colon(server: Any, mock: Any, training: Any, datum: Any, key: str) -> None:
    body = mock.fb_output([[0.0]], {key: 1.0})
    server.script("retrieve_future", mock.Answer(body=body, headers=mock.PROTO_HEADERS))
    with pytest.raises(ValueError, match="name:reducer"):
        training.forward_backward([datum()], "cross_entropy").result(10)


def test_a_mean_over_no_outputs_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        _chunks.combine([result(0, **{"x:mean": 1.0})])


def test_optim_step_takes_one_set_of_parameters(training: Any) -> None:
    with pytest.raises(ValueError, match="not both"):
        training.optim_step(types.AdamParams(), adam_params=types.AdamParams())
    with pytest.raises(TypeError, match="AdamParams"):
        training.optim_step()
    training.optim_step(adam_params=types.AdamParams(learning_rate=1)).result(10)
