"""The protobuf messages of the Tinker wire, in a pool of their own, and numpy in and out of them.

The pool is private, so that this client, a server and an SDK may live in one process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Array = npt.NDArray[Any]

_PACKAGE = "tinker_public"
_SCALARS = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint32": descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
}
_ENUMS = {
    "DType": ["DTYPE_UNSPECIFIED", "DTYPE_FLOAT32", "DTYPE_INT64", "DTYPE_INT32", "DTYPE_BFLOAT16"],
    "StopReason": ["STOP_REASON_STOP", "STOP_REASON_LENGTH"],
}

# One line a message: "number name type", with "*" repeated, "?" optional, "@o" member of oneof o, "{K,V}" a map.
_MESSAGES: dict[str, list[str]] = {
    "LossConfigValue": ["1 number double @value", "2 text string @value"],
    "EncodedTextChunk": ["1 tokens bytes"],
    "Chunk": ["1 encoded_text EncodedTextChunk @chunk"],
    "SparseCsr": ["1 values bytes", "2 crow_indices bytes", "3 col_indices bytes"],
    "Tensor": ["1 dense bytes @encoding", "2 sparse_csr SparseCsr @encoding", "3 dtype DType", "4 shape int64 *"],
    "Datum": ["1 model_input Chunk *", "2 loss_fn_inputs {string,Tensor}"],
    "ForwardBackwardRequest": [
        "1 model_id string",
        "2 seq_id int32",
        "3 data Datum *",
        "4 loss_fn string",
        "5 loss_fn_config {string,double}",
        "6 forward_only bool",
        "7 loss_fn_config_v2 {string,LossConfigValue}",
    ],
    "BatchedTensor": ["1 data bytes", "2 offsets bytes", "3 dtype DType", "4 trailing_shape int64 *"],
    "ArrayRecord": ["1 type_tag string", "2 fields {string,BatchedTensor}", "3 num_datums int64"],
    "ForwardBackwardOutput": [
        "1 loss_fn_output_type string",
        "2 loss_fn_outputs ArrayRecord *",
        "3 metrics {string,double}",
    ],
    "TopkLogprobs": ["1 token_ids bytes", "2 logprobs bytes", "3 k uint32", "4 length uint32"],
    "PromptAltTokens": ["1 tokens Tensor", "2 logprobs Tensor"],
    "SampledSequence": [
        "1 stop_reason StopReason",
        "2 tokens bytes",
        "3 logprobs bytes ?",
        "4 topk_sampled_logprobs TopkLogprobs ?",
    ],
    "SampleResponse": [
        "1 sequences SampledSequence *",
        "2 prompt_logprobs bytes ?",
        "3 topk_prompt_logprobs TopkLogprobs ?",
        "4 prompt_cache_hit_tokens int32",
        "5 target_prompt_logprobs Tensor ?",
        "6 prompt_alt_tokens PromptAltTokens ?",
    ],
}


def _set_type(field_: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
    if kind in _SCALARS:
        field_.type = _SCALARS[kind]
    else:
        field_.type = (
            descriptor_pb2.FieldDescriptorProto.TYPE_ENUM
            if kind in _ENUMS
            else descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        )
        field_.type_name = f".{_PACKAGE}.{kind}"


def _add_map(message: descriptor_pb2.DescriptorProto, name: str, kinds: str) -> str:
    entry_name = "".join(part.capitalize() for part in name.split("_")) + "Entry"
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    for number, (part, kind) in enumerate(zip(("key", "value"), kinds.strip("{}").split(","), strict=True), start=1):
        _set_type(entry.field.add(name=part, number=number, label=1), kind)
    return f".{_PACKAGE}.{message.name}.{entry_name}"


def _schema() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="tinker_conformance.proto", package=_PACKAGE, syntax="proto3")
    for enum_name, values in _ENUMS.items():
        enum = file.enum_type.add(name=enum_name)
        for position, label in enumerate(values):
            enum.value.add(name=label, number=position)
    for message_name, lines in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        oneofs = sorted({line.split("@")[1] for line in lines if "@" in line})
        for oneof in oneofs:
            message.oneof_decl.add(name=oneof)
        for line in lines:
            number, name, kind, *marks = line.split()
            member = message.field.add(name=name, number=int(number), label=3 if "*" in marks else 1)
            if kind.startswith("{"):
                member.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
                member.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                member.type_name = _add_map(message, name, kind)
                continue
            _set_type(member, kind)
            if "?" in marks:
                member.proto3_optional = True
                member.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")
            for mark in marks:
                if mark.startswith("@"):
                    member.oneof_index = oneofs.index(mark[1:])
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_schema())


def message(name: str) -> Any:
    """An empty message of that name."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))()


@dataclass(frozen=True)
class Csr:
    """A sparse (N, K) tensor; cells that are not listed hold the pad value."""

    values: Array
    crow: Array
    col: Array
    shape: tuple[int, int]

    @classmethod
    def from_dense(cls, dense: Array, pad: float = 0) -> Csr:
        """Keeps the cells that differ from ``pad``."""
        rows, cols = np.nonzero(dense != pad)
        crow = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=dense.shape[0]))]).astype("<i8")
        return cls(dense[rows, cols], crow, cols.astype("<i8"), (dense.shape[0], dense.shape[1]))

    def to_json(self) -> dict[str, Any]:
        """The JSON form that ``asample`` takes for ``target_prompt_logprobs``."""
        return {
            "data": self.values.tolist(),
            "dtype": "int64" if self.values.dtype.kind == "i" else "float32",
            "shape": list(self.shape),
            "sparse_crow_indices": self.crow.tolist(),
            "sparse_col_indices": self.col.tolist(),
        }


@dataclass(frozen=True)
class Example:
    """One datum: input tokens (N,) and named tensors aligned with them."""

    tokens: list[int]
    inputs: dict[str, Array | Csr] = field(default_factory=dict)


_DTYPES = {1: "<f4", 2: "<i8", 3: "<i4"}


def _dtype(array: Array) -> tuple[int, str]:
    return (2, "<i8") if array.dtype.kind in "iu" else (1, "<f4")


def write_tensor(target: Any, value: Array | Csr) -> None:
    """Fills a ``Tensor``: integers go as int64, the rest as float32."""
    values = value.values if isinstance(value, Csr) else value
    target.dtype, kind = _dtype(values)
    target.shape.extend(value.shape)
    if isinstance(value, Csr):
        target.sparse_csr.values = values.astype(kind).tobytes()
        target.sparse_csr.crow_indices = value.crow.astype("<i8").tobytes()
        target.sparse_csr.col_indices = value.col.astype("<i8").tobytes()
    else:
        target.dense = np.ascontiguousarray(values, dtype=kind).tobytes()


def read_tensor(tensor: Any) -> Array | Csr:
    """The arrays of a ``Tensor``."""
    kind = _DTYPES[tensor.dtype]
    shape = tuple(tensor.shape)
    if tensor.WhichOneof("encoding") == "sparse_csr":
        sparse = tensor.sparse_csr
        return Csr(
            np.frombuffer(sparse.values, kind),
            np.frombuffer(sparse.crow_indices, "<i8"),
            np.frombuffer(sparse.col_indices, "<i8"),
            (shape[0], shape[1]),
        )
    values = np.frombuffer(tensor.dense, kind)
    return values.reshape(shape) if shape else values


def forward_backward_request(
    model_id: str,
    seq_id: int,
    data: list[Example],
    loss_fn: str,
    config: dict[str, float | str] | None = None,
    forward_only: bool = False,
) -> bytes:
    """A serialized ``ForwardBackwardRequest``."""
    request = message("ForwardBackwardRequest")
    request.model_id, request.seq_id, request.loss_fn, request.forward_only = model_id, seq_id, loss_fn, forward_only
    for key, setting in (config or {}).items():
        if isinstance(setting, str):
            request.loss_fn_config_v2[key].text = setting
        else:
            request.loss_fn_config[key] = float(setting)
            request.loss_fn_config_v2[key].number = float(setting)
    for example in data:
        datum = request.data.add()
        datum.model_input.add().encoded_text.tokens = np.asarray(example.tokens, dtype="<i4").tobytes()
        for name, value in example.inputs.items():
            write_tensor(datum.loss_fn_inputs[name], value)
    return bytes(request.SerializeToString())


@dataclass(frozen=True)
class LossOutput:
    """Result of a forward_backward: per datum named arrays, and metrics."""

    outputs: list[dict[str, Array]]
    metrics: dict[str, float]

    @property
    def logprobs(self) -> list[Array]:
        """``logprobs`` of each datum, float64."""
        return [output["logprobs"].astype(np.float64) for output in self.outputs]

    @property
    def loss(self) -> float:
        """The ``loss:sum`` metric. Raises ValueError where it is missing."""
        if "loss:sum" not in self.metrics:
            raise ValueError(f"the metric loss:sum is missing; there is {sorted(self.metrics)}")
        return self.metrics["loss:sum"]


def read_loss_output(body: bytes) -> LossOutput:
    """Decodes a ``ForwardBackwardOutput``."""
    reply = message("ForwardBackwardOutput")
    reply.ParseFromString(body)
    outputs: list[dict[str, Array]] = []
    for record in reply.loss_fn_outputs:
        columns: dict[str, list[Array]] = {}
        for name, batched in record.fields.items():
            if batched.dtype == 4:
                raw = np.frombuffer(batched.data, "<u2").astype("<u4") << 16
                values, width = raw.view("<f4"), 2
            else:
                values = np.frombuffer(batched.data, _DTYPES[batched.dtype])
                width = values.itemsize
            offsets = np.frombuffer(batched.offsets, "<i8") // width
            tail = tuple(batched.trailing_shape)
            columns[name] = [
                values[start:end].reshape(-1, *tail) if tail else values[start:end]
                for start, end in zip(offsets[:-1], offsets[1:], strict=True)
            ]
        count = record.num_datums or max((len(column) for column in columns.values()), default=0)
        outputs += [{name: column[i] for name, column in columns.items()} for i in range(count)]
    return LossOutput(outputs, dict(reply.metrics))


@dataclass(frozen=True)
class TopK:
    """Rows of the k most probable tokens: ids (rows, k) and logprobs (rows, k)."""

    ids: Array
    logprobs: Array


@dataclass(frozen=True)
class Sampled:
    """One sampled sequence."""

    tokens: list[int]
    logprobs: Array
    stop_reason: str
    topk: TopK | None


@dataclass(frozen=True)
class SampleOutput:
    """Result of an asample."""

    sequences: list[Sampled]
    prompt_logprobs: Array | None
    topk_prompt_logprobs: TopK | None
    target_prompt_logprobs: Array | Csr | None
    prompt_alt_tokens: TopK | None


def _read_topk(reply: Any) -> TopK:
    shape = (reply.length, reply.k)
    return TopK(
        np.frombuffer(reply.token_ids, "<i4").reshape(shape), np.frombuffer(reply.logprobs, "<f4").reshape(shape)
    )


def read_sample_output(body: bytes) -> SampleOutput:
    """Decodes a ``SampleResponse``."""
    reply = message("SampleResponse")
    reply.ParseFromString(body)
    sequences = [
        Sampled(
            np.frombuffer(sequence.tokens, "<i4").tolist(),
            np.frombuffer(sequence.logprobs, "<f4").astype(np.float64),
            "length" if sequence.stop_reason else "stop",
            _read_topk(sequence.topk_sampled_logprobs) if sequence.HasField("topk_sampled_logprobs") else None,
        )
        for sequence in reply.sequences
    ]
    alternatives = None
    if reply.HasField("prompt_alt_tokens"):
        alternatives = TopK(
            np.asarray(read_tensor(reply.prompt_alt_tokens.tokens)),
            np.asarray(read_tensor(reply.prompt_alt_tokens.logprobs)),
        )
    return SampleOutput(
        sequences,
        np.frombuffer(reply.prompt_logprobs, "<f4").astype(np.float64) if reply.HasField("prompt_logprobs") else None,
        _read_topk(reply.topk_prompt_logprobs) if reply.HasField("topk_prompt_logprobs") else None,
        read_tensor(reply.target_prompt_logprobs) if reply.HasField("target_prompt_logprobs") else None,
        alternatives,
    )
