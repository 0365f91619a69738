"""forward_backward on the wire: protobuf (SDK 0.25 and later) and JSON (SDK 0.24) requests and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from google.protobuf.message import DecodeError

from ..errors import BadRequest, TooLarge
from ..runtime.roles import Array, Datum, LossRequest, LossResult
from . import schema
from .prompts import tokens_from_json, tokens_from_proto
from .tensors import tensor_from_json, tensor_from_proto, tensor_to_json

PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True)
class Envelope:
    """Who and when: enough to order a request before its data is looked at."""

    model_id: str
    seq_id: int | None
    body: Any


def decompressed(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Undoes ``content-encoding: zstd``; never makes more than ``limit`` bytes. Raises BadRequest, TooLarge."""
    if encoding is None or encoding == "identity":
        return body
    if encoding != "zstd":
        raise BadRequest(f"content-encoding {encoding!r} is not understood; send zstd or none")
    try:
        reader = zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True)
        plain: bytes = reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise BadRequest(f"the body is no valid zstd stream: {error}") from error
    if len(plain) > limit:
        raise TooLarge(f"the body unpacks to more than {limit} bytes; send smaller chunks")
    return plain


def open_proto(body: bytes) -> Envelope:
    """Parses a protobuf ForwardBackwardRequest. Raises BadRequest."""
    message = schema.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise BadRequest(f"the body is no ForwardBackwardRequest: {error}") from error
    return Envelope(message.model_id, message.seq_id or None, message)


def open_json(document: Any) -> Envelope:
    """Finds model and seq_id of a JSON forward or forward_backward request. Raises BadRequest."""
    if not isinstance(document, Mapping):
        raise BadRequest("the body must be a JSON object")
    model_id, seq_id = document.get("model_id"), document.get("seq_id")
    if not isinstance(model_id, str):
        raise BadRequest("model_id must be a string")
    if seq_id is not None and (not isinstance(seq_id, int) or isinstance(seq_id, bool)):
        raise BadRequest(f"seq_id must be an integer, not {seq_id!r}")
    return Envelope(model_id, seq_id, document)


def request_from_proto(envelope: Envelope, seq_id: int) -> LossRequest:
    """The LossRequest of a parsed protobuf body. Raises BadRequest."""
    message = envelope.body
    data = []
    for i, datum in enumerate(message.data):
        inputs = {
            name: tensor_from_proto(tensor, f"data[{i}].loss_fn_inputs[{name!r}]")
            for name, tensor in datum.loss_fn_inputs.items()
        }
        data.append(Datum(tokens_from_proto(datum.model_input, f"data[{i}].model_input"), inputs))
    config: dict[str, float | str] = dict(message.loss_fn_config.items())
    for name, value in message.loss_fn_config_v2.items():
        config[name] = value.text if value.WhichOneof("value") == "text" else value.number
    return LossRequest(envelope.model_id, seq_id, data, message.loss_fn, config, bool(message.forward_only))


def request_from_json(envelope: Envelope, seq_id: int, forward_only: bool) -> LossRequest:
    """The LossRequest of a JSON body; the inner object is ``forward_backward_input`` or ``forward_input``."""
    document = envelope.body
    inner = document.get("forward_backward_input") or document.get("forward_input") or document
    items = inner.get("data") if isinstance(inner, Mapping) else None
    if not isinstance(items, list):
        raise BadRequest("data must be a list of datums")
    data = []
    for i, item in enumerate(items):
        if not isinstance(item, Mapping) or not isinstance(item.get("loss_fn_inputs"), Mapping):
            raise BadRequest(f"data[{i}] must be an object with model_input and loss_fn_inputs")
        inputs = {
            str(name): tensor_from_json(tensor, f"data[{i}].loss_fn_inputs[{name!r}]")
            for name, tensor in item["loss_fn_inputs"].items()
        }
        data.append(Datum(tokens_from_json(item.get("model_input"), f"data[{i}].model_input"), inputs))
    config = inner.get("loss_fn_config") or {}
    if not isinstance(config, Mapping):
        raise BadRequest("loss_fn_config must be an object")
    for name, value in config.items():
        if not isinstance(value, int | float | str):
            raise BadRequest(f"loss_fn_config[{name!r}] must be a number or a string, not {value!r}")
    forward_only = forward_only or bool(document.get("forward_only", False))
    plain = {str(name): value if isinstance(value, str) else float(value) for name, value in config.items()}
    return LossRequest(envelope.model_id, seq_id, data, str(inner.get("loss_fn")), plain, forward_only)


def result_to_proto(result: LossResult) -> bytes:
    """A serialized ForwardBackwardOutput. Datums with different trailing shapes go to separate records."""
    output = schema.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    for group in _alike(result.outputs):
        record = output.loss_fn_outputs.add(num_datums=len(group))
        for name in group[0]:
            arrays = [np.ascontiguousarray(datum[name]) for datum in group]
            blobs = [a.astype(_wire_dtype(a), copy=False).tobytes() for a in arrays]
            field = record.fields[name]
            field.data = b"".join(blobs)
            field.offsets = np.cumsum([0, *map(len, blobs)], dtype="<i8").tobytes()
            field.dtype = schema.DTYPE_FLOAT32 if arrays[0].dtype.kind == "f" else schema.DTYPE_INT64
            field.trailing_shape.extend(arrays[0].shape[1:])
    for name, value in result.metrics.items():
        output.metrics[name] = value
    data: bytes = output.SerializeToString()
    return data


def result_to_json(result: LossResult) -> dict[str, Any]:
    """The JSON form of SDK 0.24."""
    return {
        "loss_fn_output_type": "ArrayRecord",
        "loss_fn_outputs": [{name: tensor_to_json(a) for name, a in datum.items()} for datum in result.outputs],
        "metrics": result.metrics,
    }


def _wire_dtype(array: Array) -> str:
    return "<f4" if array.dtype.kind == "f" else "<i8"


def _alike(outputs: list[dict[str, Array]]) -> list[list[dict[str, Array]]]:
    """Neighbouring datums with the same fields and trailing shapes."""
    groups: list[list[dict[str, Array]]] = []
    previous: object = None
    for datum in outputs:
        signature = {name: array.shape[1:] for name, array in datum.items()}
        if signature != previous:
            groups.append([])
            previous = signature
        groups[-1].append(datum)
    return groups
