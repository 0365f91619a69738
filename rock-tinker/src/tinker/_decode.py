"""Protobuf results to Python types."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import _proto
from .types.forward_backward import ForwardBackwardOutput, LossFnOutput
from .types.sample_response import PromptAltTokens, SampledSequence, SampleResponse
from .types.tensor_data import TensorData
from .types.topk_logprobs import TopkLogprobs

_MOST_EMPTY_OUTPUTS = 1 << 20
_STOP_REASONS = {_proto.STOP_REASON_STOP: "stop", _proto.STOP_REASON_LENGTH: "length"}


def decode_forward_backward(body: bytes) -> ForwardBackwardOutput:
    """The result of one chunk; metrics keep their ``name:reducer`` keys."""
    message = _proto.ForwardBackwardOutput.FromString(body)
    outputs: list[LossFnOutput] = []
    for record in message.loss_fn_outputs:
        outputs.extend(_decode_record(record))
    kind = message.loss_fn_output_type.rpartition(":")[2]
    if not kind and not message.loss_fn_outputs:
        kind = "ArrayRecord"
    return ForwardBackwardOutput(kind, outputs, dict(message.metrics))


def _decode_record(record: Any) -> list[LossFnOutput]:
    fields = {name: _split(tensor) for name, tensor in record.fields.items()}
    count = record.num_datums or (len(next(iter(fields.values()))) if fields else 0)
    if not fields and count > _MOST_EMPTY_OUTPUTS:
        raise ValueError(f"the server sent {count} outputs without a field")
    for name, rows in fields.items():
        if len(rows) < count:
            raise ValueError(f"output field {name!r} has {len(rows)} datums, expected {count}")
    return [{name: rows[index] for name, rows in fields.items()} for index in range(count)]


def _split(tensor: Any) -> list[TensorData]:
    """One tensor a datum, cut at byte offsets."""
    offsets = np.frombuffer(tensor.offsets, dtype="<i8")
    trailing = list(tensor.trailing_shape)
    width = math.prod(trailing)
    rows = []
    for start, end in zip(offsets[:-1], offsets[1:], strict=True):
        values = _values(tensor.data[start:end], tensor.dtype)
        shape = [values.size // width if width else 0, *trailing]
        rows.append(TensorData(values, "int64" if values.dtype.kind == "i" else "float32", shape))
    return rows


def _values(data: bytes, dtype: int) -> np.ndarray:
    if dtype == _proto.DTYPE_FLOAT32:
        return np.frombuffer(data, dtype="<f4")
    if dtype == _proto.DTYPE_INT64:
        return np.frombuffer(data, dtype="<i8")
    if dtype == _proto.DTYPE_INT32:
        return np.frombuffer(data, dtype="<i4").astype(np.int64)
    if dtype == _proto.DTYPE_BFLOAT16:
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    raise ValueError(f"unknown tensor dtype {dtype} in an answer of the server")


def decode_tensor(message: Any) -> TensorData:
    """A single tensor, dense or CSR."""
    shape = list(message.shape)
    if message.WhichOneof("encoding") == "sparse_csr":
        csr = message.sparse_csr
        values = _values(csr.values, message.dtype)
        crow = np.frombuffer(csr.crow_indices, dtype="<i8").tolist()
        columns = np.frombuffer(csr.col_indices, dtype="<i8").tolist()
        return TensorData(values, "int64" if values.dtype.kind == "i" else "float32", shape, crow, columns)
    values = _values(message.dense, message.dtype)
    return TensorData(values, "int64" if values.dtype.kind == "i" else "float32", shape)


def decode_sample(body: bytes, sequence_ids: list[str]) -> SampleResponse:
    """All sequences of one request; raises ValueError for an unknown stop reason."""
    message = _proto.SampleResponse.FromString(body)
    if len(message.sequences) != len(sequence_ids):
        raise ValueError(f"the server sampled {len(message.sequences)} sequences and promised {len(sequence_ids)}")
    sequences = [
        _decode_sequence(sequence, sequence_id)
        for sequence, sequence_id in zip(message.sequences, sequence_ids, strict=True)
    ]
    return SampleResponse(
        sequences=sequences,
        prompt_logprobs_np=_floats(message.prompt_logprobs) if message.HasField("prompt_logprobs") else None,
        topk_prompt_logprobs_np=(
            _decode_topk(message.topk_prompt_logprobs) if message.HasField("topk_prompt_logprobs") else None
        ),
        target_prompt_logprobs=(
            decode_tensor(message.target_prompt_logprobs) if message.HasField("target_prompt_logprobs") else None
        ),
        prompt_cache_hit_tokens=message.prompt_cache_hit_tokens,
        prompt_alt_tokens=(
            PromptAltTokens(
                decode_tensor(message.prompt_alt_tokens.tokens), decode_tensor(message.prompt_alt_tokens.logprobs)
            )
            if message.HasField("prompt_alt_tokens")
            else None
        ),
    )


def _decode_sequence(message: Any, sequence_id: str) -> SampledSequence:
    if message.stop_reason not in _STOP_REASONS:
        raise ValueError(f"unknown stop_reason {message.stop_reason} in an answer of the server")
    return SampledSequence(
        stop_reason=_STOP_REASONS[message.stop_reason],  # type: ignore[arg-type]
        sequence_id=sequence_id,
        tokens_np=np.frombuffer(message.tokens, dtype="<i4"),
        logprobs_np=_floats(message.logprobs) if message.logprobs else None,
        topk_logprobs_np=(
            _decode_topk(message.topk_sampled_logprobs) if message.HasField("topk_sampled_logprobs") else None
        ),
    )


def _decode_topk(message: Any) -> TopkLogprobs:
    shape = (message.length, message.k)
    ids = np.frombuffer(message.token_ids, dtype="<i4").reshape(shape)
    return TopkLogprobs(ids, _floats(message.logprobs).reshape(shape))


def _floats(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype="<f4")
