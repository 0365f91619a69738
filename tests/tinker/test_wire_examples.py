"""The exact bytes of captured exchanges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinker
from tinker import _decode, _proto, types

FB_REPLY = bytes.fromhex(
    "0a0b41727261795265636f7264124e124a0a086c6f6770726f6273123e0a20000000bf000000bf000000bf000000bf000000bf000000bf"
    "000000bf000000bf1218000000000000000010000000000000002000000000000000180118021a130a086c6f73733a73756d11000000"
    "0000000840"
)
SAMPLE_REPLY = bytes.fromhex("0a1e0801120c0000000001000000020000001a0ccdccccbdcdccccbdcdccccbd")
FB_REQUEST_START = bytes.fromhex(
    "0a10736573732d6162633a747261696e3a3010011a740a140a120a1001000000020000000300000004000000"
)
DATUM_WEIGHTS = bytes.fromhex(
    "12220a077765696768747312170a10000000000000803f0000803f0000803f18012201 04".replace(" ", "")
)
DATUM_TARGETS = bytes.fromhex(
    "12380a0d7461726765745f746f6b656e7312270a20020000000000000003000000000000000400000000000000050000000000000018022201 04".replace(
        " ", ""
    )
)


def test_a_session_begins_with_the_captured_calls(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_TAGS", "t1,t2,t1")
    service = tinker.ServiceClient(user_metadata={"a": "b"}, base_url=server.url, api_key="tml-test")
    assert server.requests == []  # making the client sends nothing
    service.create_lora_training_client("Qwen/Qwen3-8B", rank=16, seed=1).result(10)
    assert server.paths() == [
        "client/config",
        "client/dynamic_config",
        "create_session",
        "create_model",
        "retrieve_future",
        "get_info",
    ]
    bodies = [request.body for request in server.requests]
    assert bodies[0] == b'{"sdk_version":"0.38.0"}'
    assert bodies[1] == b'{"sdk_version":"0.38.0"}'
    assert bodies[2] == (
        b'{"tags":["t1","t2"],"user_metadata":{"a":"b"},"sdk_version":"0.38.0","type":"create_session"}'
    )
    assert bodies[3] == (
        b'{"session_id":"sess-abc","model_seq_id":0,"base_model":"Qwen/Qwen3-8B","lora_config":{"rank":16,"seed":1,'
        b'"train_unembed":true,"train_mlp":true,"train_attn":true},"optimizer_config":{"type":"adamw"},'
        b'"type":"create_model"}'
    )
    assert bodies[4] == b'{"request_id":"req-1","allow_metadata_only":true}'
    assert bodies[5] == b'{"model_id":"sess-abc:train:0","type":"get_info"}'


def test_forward_backward_sends_the_captured_protobuf(server: Any, training: Any, datum: Any) -> None:
    training.forward_backward([datum(), datum()], "cross_entropy").result(10)
    (request,) = server.calls("forward_backward")
    assert len(request.body) == 271
    assert request.body.startswith(FB_REQUEST_START)
    assert request.body.count(DATUM_WEIGHTS) == 2
    assert request.body.count(DATUM_TARGETS) == 2
    assert request.body.endswith(b"\x22\x0dcross_entropy")
    assert request.headers["content-type"] == "application/x-protobuf"
    assert server.calls("retrieve_future")[-1].headers["accept"] == "application/x-protobuf"


def test_loss_config_is_written_to_both_maps(server: Any, training: Any, datum: Any) -> None:
    config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2, "name": "x"}
    training.forward([datum()], "ppo", config).result(10)
    message = server.calls("forward_backward")[0].fb
    assert message.forward_only and message.loss_fn == "ppo"
    assert dict(message.loss_fn_config) == {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    assert message.loss_fn_config_v2["clip_low_threshold"].number == 0.8
    assert message.loss_fn_config_v2["clip_high_threshold"].number == 1.2
    assert message.loss_fn_config_v2["name"].text == "x"


def test_the_captured_results_are_decoded() -> None:
    output = _decode.decode_forward_backward(FB_REPLY)
    assert output.loss_fn_output_type == "ArrayRecord"
    assert [entry["logprobs"].tolist() for entry in output.loss_fn_outputs] == [[-0.5] * 4] * 2
    assert output.metrics == {"loss:sum": 3.0}
    sample = _decode.decode_sample(SAMPLE_REPLY, ["seq-0"])
    (sequence,) = sample.sequences
    assert (sequence.tokens, sequence.stop_reason, sequence.sequence_id) == ([0, 1, 2], "length", "seq-0")
    assert sequence.logprobs == pytest.approx([-0.1] * 3)


def test_training_operations_send_the_captured_json(server: Any, training: Any, datum: Any) -> None:
    training.forward_backward([datum()], "cross_entropy").result(10)
    training.optim_step(types.AdamParams()).result(10)
    training.optim_step(types.DimuonParams(learning_rate=0.1)).result(10)
    training.save_weights_and_get_sampling_client().result(10)
    saved = training.save_state("ckpt1", ttl_seconds=3600, user_metadata={"k": "v"}).result(10)
    assert saved.path == "tinker://sess-abc:train:0/weights/ckpt1"
    with pytest.warns(FutureWarning):
        training.load_state("tinker://sess-abc:train:0/weights/ckpt1").result(10)
    training.save_weights_external("e", age_encryption_recipients=["age1"]).result(10)
    adam, dimuon = server.calls("optim_step")
    assert adam.body == (
        b'{"model_id":"sess-abc:train:0","seq_id":2,"type":"optim_step","adam_params":{"learning_rate":0.0001,'
        b'"beta1":0.9,"beta2":0.95,"eps":1e-12,"weight_decay":0.0,"grad_clip_norm":0.0}}'
    )
    assert dimuon.json["optimizer_params"] == {
        "type": "dimuon",
        "learning_rate": 0.1,
        "grad_clip_norm": 0.0,
        "beta1": 0.9,
    }
    assert server.calls("save_weights_for_sampler")[0].body == (
        b'{"model_id":"sess-abc:train:0","sampling_session_seq_id":0,"kind":"snapshot","seq_id":4,'
        b'"type":"save_weights_for_sampler"}'
    )
    assert server.calls("save_weights")[0].body == (
        b'{"model_id":"sess-abc:train:0","path":"ckpt1","seq_id":5,"ttl_seconds":3600,"overwrite":false,'
        b'"user_metadata":{"k":"v"},"type":"save_weights"}'
    )
    assert server.calls("load_weights")[0].body == (
        b'{"model_id":"sess-abc:train:0","seq_id":6,"path":"tinker://sess-abc:train:0/weights/ckpt1",'
        b'"optimizer":false,"type":"load_weights"}'
    )
    assert server.calls("save_weights_external")[0].json == {
        "model_id": "sess-abc:train:0",
        "path": "e",
        "seq_id": 7,
        "age_encryption_recipients": ["age1"],
        "type": "save_weights_external",
    }


def test_asample_sends_the_captured_json(server: Any, sampling: Any, prompt: Any) -> None:
    params = types.SamplingParams(max_tokens=5, seed=3, stop=["\n"], temperature=0.7)
    sampling.sample(prompt, 2, params, include_prompt_logprobs=True, topk_prompt_logprobs=2).result(10)
    (request,) = server.calls("asample")
    assert request.body == (
        b'{"num_samples":2,"prompt":{"chunks":[{"tokens":[1,2,3],"type":"encoded_text"}]},"sampling_params":'
        b'{"max_tokens":5,"seed":3,"stop":["\\n"],"temperature":0.7,"top_k":-1,"top_p":1.0},'
        b'"sampling_session_id":"sess-abc:sample:0","seq_id":0,"prompt_logprobs":true,"topk_prompt_logprobs":2,'
        b'"topk_sample_logprobs":0,"prompt_alt_tokens_k":0,"record_stability_info":false,"type":"sample"}'
    )
    assert request.headers["x-tinker-sampling-backpressure"] == "1"


def test_clients_from_state_use_the_fixed_model_name(server: Any, training: Any, service: Any) -> None:
    path = "tinker://run:train:0/weights/c"
    plain = service.create_training_client_from_state(path).result(10)
    resumed = service.create_training_client_from_state_with_optimizer(path, weights_access_token="tok").result(10)
    assert (plain.model_id, resumed.model_id) == ("sess-abc:train:1", "sess-abc:train:2")
    first, second = server.calls("load_weights")
    assert first.body == (
        b'{"session_id":"sess-abc","model_seq_id":1,"path":"tinker://run:train:0/weights/c","optimizer":false,'
        b'"type":"load_weights"}'
    )
    assert second.json["optimizer"] is True and second.json["weights_access_token"] == "tok"
    assert [call.json["model_id"] for call in server.calls("get_info")[1:]] == ["sess-abc:train:1", "sess-abc:train:2"]


def test_sampling_clients_open_sessions_with_a_shared_counter(server: Any, service: Any) -> None:
    from_path = service.create_sampling_client(model_path="tinker://run/sampler_weights/s1").result(10)
    from_base = service.create_sampling_client(base_model="Qwen/Qwen3-8B").result(10)
    assert [call.json["sampling_session_seq_id"] for call in server.calls("create_sampling_session")] == [0, 1]
    assert [call.path for call in server.calls("samplers/.*")] == ["samplers/sess-abc:sample:0"]  # only for the path
    assert from_path.get_base_model() == from_base.get_base_model() == "Qwen/Qwen3-8B"


def test_finish_sends_reason_and_detail(server: Any, training: Any, service: Any) -> None:
    service.close("success", "done").result(10)
    (call,) = server.calls("sessions/sess-abc/finish")
    assert call.body == b'{"reason":{"type":"success"},"detail":"done"}'


def test_headers_of_calls(server: Any, training: Any, datum: Any) -> None:
    training.optim_step(types.AdamParams()).result(10)
    config, *_ = server.calls("client/config")
    assert "x-sdk-method" not in config.headers
    (call,) = server.calls("optim_step")
    poll = server.calls("retrieve_future")[-1]
    assert call.headers["x-api-key"] == "tml-test" and "authorization" not in call.headers
    assert call.headers["user-agent"] == "AsyncTinker/Python 0.38.0"
    assert call.headers["accept-encoding"] == "gzip, deflate, zstd"
    assert call.headers["x-idempotency-key"].startswith("stainless-python-retry-")
    assert call.headers["x-stainless-retry-count"] == "0"
    assert call.headers["x-stainless-package-version"] == "0.38.0"
    assert call.headers["x-stainless-async"] == "async:asyncio"
    assert (call.headers["x-sdk-version"], call.headers["x-sdk-method"]) == ("0.38.0", "TrainingClient.optim_step")
    assert poll.headers["x-stainless-raw-response"] == "raw"
    assert (poll.headers["x-tinker-request-iteration"], poll.headers["x-tinker-request-type"]) == ("0", "OptimStep")
    assert float(poll.headers["x-tinker-create-promise-roundtrip-time"]) > 0


def test_provenance_and_images_travel(server: Any, training: Any) -> None:
    text = types.EncodedTextChunk(tokens=[7, 8])
    image = types.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=2)
    dmel = types.DmelChunk(dmel=bytes([1, 1, 1, 5]))
    datum = types.Datum(
        types.ModelInput(chunks=[text, image, dmel]), {"target_tokens": np.arange(5), "weights": [1.0] * 5}
    ).with_provenance(
        model_input=[types.PromptProvenanceSpan(sequence_id="s", length=3)]
        + [types.SampledProvenanceSpan(sequence_id="s", offset=1, length=2)],
        loss_fn_inputs=[types.SampledProvenanceSpan(sequence_id="s", length=5)],
    )
    training.forward_backward([datum], "cross_entropy").result(10)
    (sent,) = server.calls("forward_backward")[0].fb.data
    assert sent.model_input[0].encoded_text.tokens == np.array([7, 8], dtype="<i4").tobytes()
    assert (sent.model_input[1].image.data, sent.model_input[1].image.format) == (b"\x89PNG", "png")
    assert sent.model_input[1].image.expected_tokens == 2
    assert not sent.model_input[1].image.HasField("override_dimensions")
    assert sent.model_input[2].dmel.dmel == bytes([1, 1, 1, 5])
    assert sent.model_input_spans[0].prompt_tokens.length == 3
    assert (sent.model_input_spans[1].sampled_tokens.offset, sent.model_input_spans[1].sampled_tokens.length) == (1, 2)
    assert sent.loss_fn_input_spans[0].sampled_tokens.sequence_id == "s"


def test_our_message_classes_live_apart_from_the_default_pool() -> None:
    from google.protobuf import descriptor_pool

    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("tinker_public.Datum")
    assert _proto.Datum.DESCRIPTOR.full_name == "tinker_public.Datum"
