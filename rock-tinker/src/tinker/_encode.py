"""Training data to protobuf requests, and the sizes by which requests are cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _proto
from .types.datum import Datum
from .types.model_input import DmelChunk, EncodedTextChunk, ImageAssetPointerChunk, ImageChunk, ModelInput
from .types.provenance import PromptProvenanceSpan, SampledProvenanceSpan
from .types.tensor_data import TensorData

_DTYPES = {"float32": _proto.DTYPE_FLOAT32, "int64": _proto.DTYPE_INT64}
BYTES_PER_TOKEN = 4
_INT32_END = 2**31


def encode_forward_backward(
    data: Sequence[Datum],
    loss_fn: str,
    loss_fn_config: Mapping[str, float | str] | None,
    *,
    model_id: str,
    seq_id: int,
    forward_only: bool,
) -> bytes:
    """A ForwardBackwardRequest. Raises ValueError for chunks that training does not take."""
    message = _proto.ForwardBackwardRequest(model_id=model_id, seq_id=seq_id, loss_fn=loss_fn)
    message.forward_only = forward_only
    for datum in data:
        _encode_datum(message.data.add(), datum)
    for key, value in (loss_fn_config or {}).items():
        if isinstance(value, str):
            message.loss_fn_config_v2[key].text = value
        else:
            message.loss_fn_config[key] = float(value)
            message.loss_fn_config_v2[key].number = float(value)
    return bytes(message.SerializeToString(deterministic=True))


def check_data(data: Any) -> list[Datum]:
    """The datums of a call as a list. Raises TypeError, ValueError for what cannot be sent."""
    if isinstance(data, Datum) or not isinstance(data, Iterable):
        raise TypeError(f"data must be a list of Datum, got {type(data).__name__}; put it in brackets: [datum]")
    datums = list(data)
    if not datums:
        raise ValueError("data must hold at least one Datum")
    for i, datum in enumerate(datums):
        if not isinstance(datum, Datum):
            raise TypeError(f"data[{i}] must be a tinker.Datum, got {type(datum).__name__}")
        if not isinstance(datum.model_input, ModelInput):
            raise TypeError(f"data[{i}].model_input must be a ModelInput, got {type(datum.model_input).__name__}")
        for chunk in datum.model_input.chunks:
            _check_chunk(chunk, f"data[{i}].model_input")
    return datums


def _check_chunk(chunk: Any, field: str) -> None:
    if isinstance(chunk, EncodedTextChunk):
        if len(chunk.tokens) and not (min(chunk.tokens) >= -_INT32_END and max(chunk.tokens) < _INT32_END):
            bad = next(token for token in chunk.tokens if not -_INT32_END <= token < _INT32_END)
            raise ValueError(f"{field} holds token id {bad}, which does not fit 32 bits; send ids of the tokenizer")
    elif not isinstance(chunk, ImageChunk | DmelChunk):
        raise ValueError(
            f"{field}: {type(chunk).__name__} is not supported in training data; send the bytes as an ImageChunk"
        )


def check_config(config: Mapping[str, float | str] | None) -> None:
    """Raises TypeError for values of ``loss_fn_config`` that are neither numbers nor text."""
    for key, value in (config or {}).items():
        if not isinstance(value, str):
            try:
                float(value)
            except (TypeError, ValueError) as error:
                raise TypeError(f"loss_fn_config[{key!r}] must be a number or text, got {value!r}") from error


def _encode_datum(message: Any, datum: Datum) -> None:
    for chunk in datum.model_input.chunks:
        _encode_chunk(message.model_input.add(), chunk)
    for key, tensor in datum.loss_fn_inputs.items():
        _encode_tensor(message.loss_fn_inputs[key], tensor)
    for target, spans in (
        (message.model_input_spans, datum.model_input_spans),
        (message.loss_fn_input_spans, datum.loss_fn_input_spans),
    ):
        for span in spans or ():
            _encode_span(target.add(), span)


def _encode_chunk(message: Any, chunk: Any) -> None:
    if isinstance(chunk, EncodedTextChunk):
        message.encoded_text.tokens = np.asarray(chunk.tokens, dtype="<i4").tobytes()
    elif isinstance(chunk, ImageChunk):
        message.image.data = chunk.data
        message.image.format = chunk.format
        if chunk.expected_tokens is not None:
            message.image.expected_tokens = chunk.expected_tokens
    else:
        message.dmel.dmel = chunk.dmel


def _encode_tensor(message: Any, tensor: TensorData) -> None:
    message.dtype = _DTYPES[tensor.dtype]
    message.shape.extend([len(tensor)] if tensor.shape is None else tensor.shape)
    if tensor.is_sparse:
        message.sparse_csr.values = tensor.values.tobytes()
        message.sparse_csr.crow_indices = np.asarray(tensor.sparse_crow_indices, dtype="<i8").tobytes()
        message.sparse_csr.col_indices = np.asarray(tensor.sparse_col_indices or [], dtype="<i8").tobytes()
    else:
        message.dense = tensor.values.tobytes()


def _encode_span(message: Any, span: PromptProvenanceSpan | SampledProvenanceSpan) -> None:
    target = message.prompt_tokens if isinstance(span, PromptProvenanceSpan) else message.sampled_tokens
    target.sequence_id = span.sequence_id
    target.offset = span.offset
    target.length = span.length


def input_bytes(model_input: ModelInput, bytes_per_token: int = BYTES_PER_TOKEN) -> int:
    """Estimated size of a model input in a request."""
    size = 0
    for chunk in model_input.chunks:
        if isinstance(chunk, EncodedTextChunk):
            size += bytes_per_token * len(chunk.tokens)
        elif isinstance(chunk, ImageChunk):
            size += len(chunk.data)
        elif isinstance(chunk, ImageAssetPointerChunk):
            size += len(chunk.location)
        else:
            size += len(chunk.dmel)
    return size


def datum_bytes(datum: Datum) -> int:
    """Estimated size of a datum in a request."""
    return input_bytes(datum.model_input) + sum(tensor.byte_size for tensor in datum.loss_fn_inputs.values())
