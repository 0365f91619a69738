"""Tensors, chunks, datums, paths: values in, values out."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import ValidationError

from tinker import _decode, _encode, _proto, types
from tinker.types import Datum, ModelInput, TensorData
from tinker.types.tensor_data import TensorDataJson

shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)
floats = hnp.arrays(np.float32, shapes, elements=st.floats(-1e6, 1e6, width=32))
ints = hnp.arrays(np.int64, shapes, elements=st.integers(-(2**63), 2**63 - 1))


def through_the_wire(tensor: TensorData) -> TensorData:
    message = _proto.Tensor()
    _encode._encode_tensor(message, tensor)
    return _decode.decode_tensor(_proto.Tensor.FromString(message.SerializeToString()))


@given(st.one_of(floats, ints))
@settings(max_examples=200, deadline=None)
def test_dense_tensors_survive_protobuf_and_json(array: np.ndarray) -> None:
    tensor = TensorData.from_numpy(array)
    for copy in (through_the_wire(tensor), _from_json(tensor)):
        assert copy.dtype == tensor.dtype and copy.shape == list(array.shape)
        np.testing.assert_array_equal(copy.to_numpy(), array)


def _from_json(tensor: TensorData) -> TensorData:
    text = TensorDataJson.of(tensor).model_dump_json(exclude_none=True)
    return TensorData(**TensorDataJson.model_validate_json(text).model_dump())


@given(
    hnp.arrays(
        np.int64,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=12),
        elements=st.sampled_from([0, 0, 0, 0, 1, -7, 2**40]),
    ),
    st.sampled_from([0, -1]),
)
@settings(max_examples=200, deadline=None)
def test_sparse_tensors_survive(array: np.ndarray, pad: int) -> None:
    torch = pytest.importorskip("torch")
    array = np.where(array == 0, pad, array)
    tensor = TensorData.from_torch_sparse(torch.from_numpy(array.copy()), pad_value=pad)
    rows, columns = array.shape
    listed = int((array != pad).sum())
    assert tensor.is_sparse == ((rows + 1) + 2 * listed < rows * columns)
    for copy in (tensor, through_the_wire(tensor), _from_json(tensor)):
        np.testing.assert_array_equal(copy.to_numpy(pad), array)
        assert copy.tolist(pad) == array.tolist()


@given(
    st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(["alpha", 0.5, 1e-30]).map(str), st.one_of(st.floats(), st.text()), max_size=3),
    st.integers(1, 2**31 - 1),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_requests_say_what_was_asked(token_lists: Any, config: Any, seq_id: int, forward_only: bool) -> None:
    data = [Datum(ModelInput.from_ints(t), {"target_tokens": t, "weights": [1.0] * len(t)}) for t in token_lists]
    body = _encode.encode_forward_backward(data, "ppo", config, model_id="m", seq_id=seq_id, forward_only=forward_only)
    message = _proto.ForwardBackwardRequest.FromString(body)
    assert (message.model_id, message.seq_id, message.forward_only) == ("m", seq_id, forward_only)
    sent = [np.frombuffer(d.model_input[0].encoded_text.tokens, dtype="<i4").tolist() for d in message.data]
    assert sent == token_lists
    assert set(message.loss_fn_config_v2) == set(config)
    assert set(message.loss_fn_config) == {key for key, value in config.items() if not isinstance(value, str)}
    assert body == _encode.encode_forward_backward(  # the same bytes every time
        data, "ppo", config, model_id="m", seq_id=seq_id, forward_only=forward_only
    )


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_broken_results_raise_and_do_not_hang(body: bytes) -> None:
    from google.protobuf.message import DecodeError

    for decode in (_decode.decode_forward_backward, lambda b: _decode.decode_sample(b, ["a"])):
        with contextlib.suppress(DecodeError, ValueError, OverflowError):
            decode(body)


@pytest.mark.parametrize(
    ("dtype", "raw", "expected"),
    [
        (_proto.DTYPE_INT32, np.array([1, -2], dtype="<i4").tobytes(), np.array([1, -2], dtype=np.int64)),
        (_proto.DTYPE_BFLOAT16, b"\x80\x3f\x00\xc0", np.array([1.0, -2.0], dtype=np.float32)),
        (_proto.DTYPE_INT64, np.array([2**40], dtype="<i8").tobytes(), np.array([2**40])),
    ],
)
def test_narrow_types_are_widened(dtype: int, raw: bytes, expected: np.ndarray) -> None:
    message = _proto.ForwardBackwardOutput(loss_fn_output_type="tinker:ArrayRecord")
    field = message.loss_fn_outputs.add(num_datums=1).fields["x"]
    field.data, field.offsets, field.dtype = raw, np.array([0, len(raw)], dtype="<i8").tobytes(), dtype
    output = _decode.decode_forward_backward(message.SerializeToString())
    np.testing.assert_array_equal(output.loss_fn_outputs[0]["x"].to_numpy(), expected)
    assert output.loss_fn_outputs[0]["x"].to_numpy().dtype == expected.dtype
    assert output.loss_fn_output_type == "ArrayRecord"  # the part after the last colon


def test_trailing_shapes_and_several_records() -> None:
    message = _proto.ForwardBackwardOutput()
    for rows, width in ((2, 3), (1, 2)):
        record = message.loss_fn_outputs.add()  # no num_datums: the offsets say how many
        field = record.fields["logprobs"]
        field.data = np.arange(rows * width, dtype="<f4").tobytes()
        field.offsets = np.array([0, 4 * rows * width], dtype="<i8").tobytes()
        field.dtype = _proto.DTYPE_FLOAT32
        field.trailing_shape.append(width)
    output = _decode.decode_forward_backward(message.SerializeToString())
    assert [entry["logprobs"].shape for entry in output.loss_fn_outputs] == [[2, 3], [1, 2]]
    assert output.loss_fn_outputs[0]["logprobs"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_no_records_and_no_name_is_an_array_record() -> None:
    assert _decode.decode_forward_backward(b"").loss_fn_output_type == "ArrayRecord"


def test_unknown_stop_reasons_and_wrong_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="stop_reason"):
        _decode.decode_sample(bytes.fromhex("0a020805"), ["a"])
    with pytest.raises(ValueError, match="promised 2"):
        _decode.decode_sample(bytes.fromhex("0a020801"), ["a", "b"])


# -- TensorData ----------------------------------------------------------------------------------------------------
def test_tensor_data_needs_a_type_and_a_fitting_shape() -> None:
    with pytest.raises(TypeError, match="dtype"):
        TensorData([1])
    with pytest.raises(ValueError, match="Unsupported TensorDtype: bad"):
        TensorData([1], "bad")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"size 3 into shape \(2,2\)"):
        TensorData([1, 2, 3], "int64", [2, 2])
    assert TensorData([1, 2], "float32").data == [1.0, 2.0]
    assert TensorData(None, "int64").data == []
    assert TensorData([1, 2, 3, 4], "int64", [2, 2]).tolist() == [[1, 2], [3, 4]]
    assert TensorData([1, 2], "int64").shape is None


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint64, np.bool_])
def test_unsigned_and_boolean_arrays_are_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match="Unsupported numpy dtype"):
        TensorData.from_numpy(np.zeros(2, dtype=dtype))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.float16, "float32"), (np.float64, "float32"), (np.int8, "int64"), (np.int32, "int64")],
)
def test_other_arrays_get_the_wire_type(dtype: Any, expected: str) -> None:
    assert TensorData.from_numpy(np.ones(2, dtype=dtype)).dtype == expected


def test_torch_tensors(datum: Any) -> None:
    torch = pytest.importorskip("torch")
    assert TensorData.from_torch(torch.tensor([1.5], dtype=torch.bfloat16, requires_grad=True)).data == [1.5]
    made = datum(
        target_tokens=torch.tensor([[3, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]),
        weights=torch.ones(2, 6),
        advantages=torch.zeros(2, 6),
    )
    assert made.loss_fn_inputs["target_tokens"].is_sparse
    assert not made.loss_fn_inputs["weights"].is_sparse  # nothing to save
    assert not made.loss_fn_inputs["advantages"].is_sparse  # only targets and weights are tried
    assert torch.equal(made.loss_fn_inputs["target_tokens"].to_torch(), torch.tensor([[3] + [0] * 5, [0] * 6]))


# -- Datum ---------------------------------------------------------------------------------------------------------
def test_lists_get_their_type_from_the_key(datum: Any) -> None:
    inputs = datum(
        target_tokens=[1, 2],
        weights=[1, 2],
        advantages=[1, 2],
        logprobs=[1, 2],
        clip_low_threshold=[1, 2],
        clip_high_threshold=[1, 2],
        sequence_ratio_mask=[[1, 2], [3, 4]],
        other=np.array([1, 2]),
    ).loss_fn_inputs
    assert inputs.pop("target_tokens").dtype == "int64" and inputs.pop("other").dtype == "int64"
    assert {tensor.dtype for tensor in inputs.values()} == {"float32"}
    assert inputs["sequence_ratio_mask"].shape == [2, 2]


def test_values_without_a_tensor_form_are_refused(datum: Any) -> None:
    with pytest.raises(KeyError, match="'other'.* give a numpy array"):
        datum(other=[1, 2])
    with pytest.raises(KeyError, match="'weight'.* did you mean 'weights'"):
        datum(weight=[1, 2])
    with pytest.raises(ValueError, match="rectangular"):
        datum(weights=[[1.0], [1.0, 2.0]])
    for value in (3, (1, 2), "x", None):
        with pytest.raises(TypeError, match="weights"):
            datum(weights=value)


def test_spans_must_tile(datum: Any) -> None:
    prompt_span, sampled = types.PromptProvenanceSpan, types.SampledProvenanceSpan
    spans = [prompt_span(sequence_id="a", length=1), sampled(sequence_id="a", length=3)]
    tiled = datum().with_provenance(spans, spans)
    assert tiled.model_input_spans == spans and tiled.loss_fn_input_spans == spans
    for model_input, loss_inputs, where in ((spans[:1], spans, "model_input"), (spans, [], "loss_fn_inputs")):
        with pytest.raises(ValueError, match=f"{where} has .* spans add up to"):
            datum().with_provenance(model_input, loss_inputs)
    for kind in (prompt_span, sampled):
        with pytest.raises(ValueError, match="length must be >= 0, got -1"):
            kind(sequence_id="a", length=-1)
        with pytest.raises(TypeError):
            kind("a", 0, 1)  # type: ignore[misc]


# -- inputs --------------------------------------------------------------------------------------------------------
def test_model_inputs_are_immutable() -> None:
    first = ModelInput.from_ints([1, 2])
    second = first.append_int(3)
    assert (first.to_ints(), second.to_ints(), second.length) == ([1, 2], [1, 2, 3], 3)
    assert ModelInput.empty().length == 0 and ModelInput.empty().append_int(1).to_ints() == [1]
    assert first == ModelInput.from_ints([1, 2])
    with pytest.raises(ValidationError):
        first.chunks = []


def test_lengths_of_images_and_sound() -> None:
    image = types.ImageChunk(data="YWI=", format="png")  # type: ignore[arg-type]
    assert image.data == b"ab" and image.model_dump_json() == (
        '{"data":"YWI=","format":"png","expected_tokens":null,"type":"image"}'
    )
    for chunk in (image, types.ImageAssetPointerChunk(format="png", location="x")):
        with pytest.raises(ValueError, match="expected_tokens"):
            chunk.length  # noqa: B018
    with pytest.raises(ValueError, match="to_ints"):
        ModelInput(chunks=[image]).to_ints()
    assert types.DmelChunk(dmel=bytes([254, 0, 2, 3, 4])).length == 3
    assert types.DmelChunk(dmel=bytes([7, 2, 0x83, 0x01, 4])).length == 131
    for broken, message in ((b"", "empty"), (b"\x09\x01\x01", "dtype 9"), (b"\x01\x00", "without dimensions")):
        with pytest.raises(ValueError, match=message):
            types.DmelChunk(dmel=broken).length  # noqa: B018
    with pytest.raises(ValueError, match="ends within its header"):
        types.DmelChunk(dmel=b"\x01\x02\x83").length  # noqa: B018


def test_requests_refuse_unknown_fields_and_responses_ignore_them() -> None:
    with pytest.raises(ValidationError):
        types.AdamParams(lr=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        types.DimuonParams(learning_rate=-1)
    assert types.SamplingParams(colour="red") == types.SamplingParams()  # type: ignore[call-arg]
    assert types.OptimStepResponse.model_validate({"metrics": {"a": "1"}, "new": 1}).metrics == {"a": 1.0}


def test_unknown_optimizer_families_pass_through() -> None:
    info = types.GetInfoResponse.model_validate(
        {"model_id": "m", "model_data": {}, "optimizer_config": {"type": "new", "x": 1}}
    )
    assert info.optimizer_config.type == "new" and info.optimizer_config.x == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("segment", "kind"),
    [("weights", "training"), ("sampler_weights", "sampler"), ("external_weights", "external")],
)
def test_tinker_paths(segment: str, kind: str) -> None:
    path = f"tinker://s:train:0/{segment}/name"
    parsed = types.ParsedCheckpointTinkerPath.from_tinker_path(path)
    assert (parsed.training_run_id, parsed.checkpoint_type, parsed.checkpoint_id) == (
        "s:train:0",
        kind,
        f"{segment}/name",
    )


@pytest.mark.parametrize(
    ("model", "tokenizer_id", "expected"),
    [
        ("Qwen/Qwen3-8B", None, "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B:foo", None, "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B", "other/tok:bar", "other/tok"),
        ("meta-llama/Llama-3.1-8B", None, "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"),
        ("org/model/variant", None, "org/model"),
        ("/srv/models/tiny/x", None, "/srv/models/tiny/x"),
    ],
)
def test_names_of_tokenizers(model: str, tokenizer_id: str | None, expected: str) -> None:
    from tinker._tokenizer import tokenizer_name

    assert tokenizer_name(model, tokenizer_id) == expected
