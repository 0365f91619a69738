"""Whatever bytes come in, a decoder answers with a request or with an error for the client; nothing else escapes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tinker_backend.conformance import wire as client_wire
from tinker_backend.errors import ApiError
from tinker_backend.server.chat import anthropic_requests, openai_requests
from tinker_backend.wire import requests, sampling, training

FUZZ = settings.get_profile("fuzz")
pytestmark = pytest.mark.timeout(300 + FUZZ.max_examples)

BLOBS = st.one_of(
    st.binary(max_size=40),
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8).map(lambda v: np.array(v, "<i4").tobytes()),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8).map(lambda v: np.array(v, "<i8").tobytes()),
    st.lists(st.floats(width=32), max_size=8).map(lambda v: np.array(v, "<f4").tobytes()),
)
SIZES = st.lists(st.one_of(st.integers(-2, 9), st.integers(-(2**63), 2**63 - 1)), max_size=3)
NAMES = st.one_of(st.sampled_from(["target_tokens", "weights", "logprobs", "advantages"]), st.text(max_size=8))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)


@st.composite
def proto_bodies(draw: st.DrawFn) -> bytes:
    """Protobuf requests that parse, with anything inside."""
    message = client_wire.message("ForwardBackwardRequest")
    message.model_id = draw(st.text(max_size=12))
    message.seq_id = draw(st.integers(-(2**31), 2**31 - 1))
    message.loss_fn = draw(st.sampled_from(["cross_entropy", "ppo", "", "custom", "\x00"]))
    message.forward_only = draw(st.booleans())
    for key, number in draw(st.dictionaries(st.text(max_size=6), st.floats(), max_size=2)).items():
        message.loss_fn_config[key] = number
    for _ in range(draw(st.integers(0, 3))):
        datum = message.data.add()
        for _ in range(draw(st.integers(0, 2))):
            datum.model_input.add().encoded_text.tokens = draw(BLOBS)
        for name in draw(st.lists(NAMES, max_size=3, unique=True)):
            tensor = datum.loss_fn_inputs[name]
            tensor.dtype = draw(st.integers(0, 6))
            tensor.shape.extend(draw(SIZES))
            if draw(st.booleans()):
                tensor.dense = draw(BLOBS)
            else:
                tensor.sparse_csr.values = draw(BLOBS)
                tensor.sparse_csr.crow_indices = draw(BLOBS)
                tensor.sparse_csr.col_indices = draw(BLOBS)
    body: bytes = message.SerializeToString()
    return body


def _decode_proto(body: bytes) -> None:
    training.request_from_proto(training.open_proto(body), 1)


def _only_client_errors(action: Any, *arguments: Any) -> None:
    try:
        action(*arguments)
    except ApiError as error:
        assert 400 <= error.status < 500, error
        assert str(error), "an error without words"
    except ValidationError:
        pass  # the server answers it with a 4xx


@given(st.binary(max_size=400))
@settings(FUZZ)
def test_any_bytes_for_protobuf(body: bytes) -> None:
    _only_client_errors(_decode_proto, body)


@given(proto_bodies())
@settings(FUZZ)
def test_any_protobuf_request(body: bytes) -> None:
    _only_client_errors(_decode_proto, body)


@given(proto_bodies(), st.integers(0, 10**6), st.integers(0, 255))
@settings(FUZZ)
def test_a_protobuf_request_with_a_flipped_byte(body: bytes, place: int, byte: int) -> None:
    if body:
        place %= len(body)
        body = body[:place] + bytes([byte]) + body[place + 1 :]
    _only_client_errors(_decode_proto, body)


@given(
    st.one_of(st.binary(max_size=200), st.binary(max_size=4000).map(lambda b: zstandard.compress(b))),
    st.text(max_size=6),
)
@settings(FUZZ)
def test_any_compressed_body(body: bytes, encoding: str) -> None:
    for name in ("zstd", encoding):
        _only_client_errors(training.decompressed, body, name, 1000)


def test_a_compressed_bomb_stops_at_the_limit() -> None:
    bomb = zstandard.compress(bytes(300_000_000))
    assert len(bomb) < 100_000
    with pytest.raises(ApiError) as refusal:
        training.decompressed(bomb, "zstd", 1_000_000)
    assert refusal.value.status == 413


@given(JSON)
@settings(FUZZ)
def test_any_json_for_forward_backward(document: Any) -> None:
    _only_client_errors(lambda: training.request_from_json(training.open_json(document), 1, False))
    wrapped = {"model_id": "m", "seq_id": 1, "forward_backward_input": {"data": [document], "loss_fn": "ppo"}}
    _only_client_errors(lambda: training.request_from_json(training.open_json(wrapped), 1, False))
    datum = {"model_input": document, "loss_fn_inputs": {"weights": document}}
    wrapped = {"model_id": "m", "seq_id": 1, "forward_backward_input": {"data": [datum], "loss_fn_config": document}}
    _only_client_errors(lambda: training.request_from_json(training.open_json(wrapped), 1, False))


TENSORS = st.fixed_dictionaries(
    {"data": st.one_of(JSON, st.lists(st.one_of(st.integers(), st.floats()), max_size=6))},
    optional={
        "dtype": st.sampled_from(["float32", "int64", "int8", 5]),
        "shape": st.one_of(SIZES, JSON),
        "sparse_crow_indices": st.one_of(SIZES, JSON),
        "sparse_col_indices": st.one_of(SIZES, JSON),
    },
)


@given(
    st.fixed_dictionaries(
        {"prompt": st.one_of(JSON, st.just({"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]}))},
        optional={
            "sampling_params": JSON,
            "num_samples": JSON,
            "target_prompt_logprobs": st.one_of(JSON, TENSORS),
            "seq_id": st.integers(),
        },
    )
)
@settings(FUZZ)
def test_any_json_for_asample(document: dict[str, Any]) -> None:
    _only_client_errors(lambda: sampling.request_from_body(sampling.AsampleBody.model_validate(document), "r", "v"))


BODIES = [
    body
    for module in (requests, openai_requests, anthropic_requests)
    for body in vars(module).values()
    if isinstance(body, type) and issubclass(body, BaseModel) and body.__module__ == module.__name__
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{body.__module__.rsplit('.', 1)[1]}.{body.__name__}")
@given(data=st.data())
@settings(FUZZ, max_examples=max(10, FUZZ.max_examples // 5))
def test_any_json_for_each_body(body: type[BaseModel], data: st.DataObject) -> None:
    known = dict.fromkeys(body.model_fields, JSON)
    document = data.draw(st.fixed_dictionaries({}, optional=known))
    text = json.dumps(document)
    _only_client_errors(body.model_validate_json, text)


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool", "x"]),
            "content": st.one_of(st.text(max_size=9), JSON),
        },
        optional={"tool_calls": JSON, "tool_call_id": st.text(max_size=5)},
    ),
    max_size=3,
)


@given(MESSAGES, JSON, JSON)
@settings(FUZZ)
def test_any_conversation_of_either_door(messages: list[Any], tools: Any, choice: Any) -> None:
    document = {"model": "m", "messages": messages, "tools": tools, "tool_choice": choice}
    _only_client_errors(lambda: openai_requests.ChatBody.model_validate(document).to_conversation())
    document["max_tokens"] = 5
    _only_client_errors(lambda: anthropic_requests.MessagesBody.model_validate(document).to_conversation())
