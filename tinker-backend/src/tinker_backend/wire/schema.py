"""The protobuf messages of package ``tinker_public``, built in a private descriptor pool.

The pool is private so that this module and any other package that registers messages of the same names can live in
one process. All binary blobs are little-endian, C-order.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "tinker_public"
_Field = descriptor_pb2.FieldDescriptorProto

_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}

# One line a field: number, name, type. Prefixes of the type: "*" repeated, "?" explicit presence,
# "oneof:" member of the message's oneof; "map:V" is map<string, V>.
_MESSAGES: dict[str, list[tuple[int, str, str]]] = {
    "ForwardBackwardRequest": [
        (1, "model_id", "string"),
        (2, "seq_id", "int32"),
        (3, "data", "*Datum"),
        (4, "loss_fn", "string"),
        (5, "loss_fn_config", "map:double"),
        (6, "forward_only", "bool"),
        (7, "loss_fn_config_v2", "map:LossConfigValue"),
    ],
    "LossConfigValue": [(1, "number", "oneof:double"), (2, "text", "oneof:string")],
    "Datum": [
        (1, "model_input", "*Chunk"),
        (2, "loss_fn_inputs", "map:Tensor"),
        (3, "model_input_spans", "*ProvenanceSpan"),
        (4, "loss_fn_input_spans", "*ProvenanceSpan"),
    ],
    "ProvenanceSpan": [
        (1, "prompt_tokens", "oneof:PromptProvenanceSpan"),
        (2, "sampled_tokens", "oneof:SampledProvenanceSpan"),
    ],
    "PromptProvenanceSpan": [(1, "sequence_id", "string"), (2, "offset", "int64"), (3, "length", "int64")],
    "SampledProvenanceSpan": [(1, "sequence_id", "string"), (2, "offset", "int64"), (3, "length", "int64")],
    "Chunk": [
        (1, "encoded_text", "oneof:EncodedTextChunk"),
        (2, "image", "oneof:ImageChunk"),
        (3, "dmel", "oneof:DmelChunk"),
    ],
    "EncodedTextChunk": [(1, "tokens", "bytes")],
    "ImageChunk": [
        (1, "data", "bytes"),
        (2, "format", "string"),
        (3, "expected_tokens", "?int32"),
        (4, "override_dimensions", "ImageDimensions"),
    ],
    "ImageDimensions": [(1, "width", "uint32"), (2, "height", "uint32")],
    "DmelChunk": [(1, "dmel", "bytes")],
    "Tensor": [
        (1, "dense", "oneof:bytes"),
        (2, "sparse_csr", "oneof:SparseCsr"),
        (3, "dtype", "DType"),
        (4, "shape", "*int64"),
    ],
    "SparseCsr": [(1, "values", "bytes"), (2, "crow_indices", "bytes"), (3, "col_indices", "bytes")],
    "ForwardBackwardOutput": [
        (1, "loss_fn_output_type", "string"),
        (2, "loss_fn_outputs", "*ArrayRecord"),
        (3, "metrics", "map:double"),
    ],
    "ArrayRecord": [(1, "type_tag", "string"), (2, "fields", "map:BatchedTensor"), (3, "num_datums", "int64")],
    "BatchedTensor": [
        (1, "data", "bytes"),
        (2, "offsets", "bytes"),
        (3, "dtype", "DType"),
        (4, "trailing_shape", "*int64"),
    ],
    "SampleResponse": [
        (1, "sequences", "*SampledSequence"),
        (2, "prompt_logprobs", "?bytes"),
        (3, "topk_prompt_logprobs", "TopkLogprobs"),
        (4, "prompt_cache_hit_tokens", "int32"),
        (5, "target_prompt_logprobs", "Tensor"),
        (6, "prompt_alt_tokens", "PromptAltTokens"),
    ],
    "SampledSequence": [
        (1, "stop_reason", "StopReason"),
        (2, "tokens", "bytes"),
        (3, "logprobs", "?bytes"),
        (4, "topk_sampled_logprobs", "TopkLogprobs"),
    ],
    "TopkLogprobs": [(1, "token_ids", "bytes"), (2, "logprobs", "bytes"), (3, "k", "uint32"), (4, "length", "uint32")],
    "PromptAltTokens": [(1, "tokens", "Tensor"), (2, "logprobs", "Tensor")],
}
_ONEOFS = {"LossConfigValue": "value", "ProvenanceSpan": "span", "Chunk": "chunk", "Tensor": "encoding"}
_ENUMS = {
    "DType": ["DTYPE_UNSPECIFIED", "DTYPE_FLOAT32", "DTYPE_INT64", "DTYPE_INT32", "DTYPE_BFLOAT16"],
    "StopReason": ["STOP_REASON_STOP", "STOP_REASON_LENGTH"],
}


def _set_type(field: _Field, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_ENUM if kind in _ENUMS else _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"


def _add_field(message: descriptor_pb2.DescriptorProto, number: int, name: str, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("map:"):
        entry_name = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
        _set_type(entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL), kind[4:])
        field.label = _Field.LABEL_REPEATED
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{message.name}.{entry_name}"
    elif kind.startswith("*"):
        field.label = _Field.LABEL_REPEATED
        _set_type(field, kind[1:])
    elif kind.startswith("oneof:"):
        field.oneof_index = 0
        _set_type(field, kind[6:])
    elif kind.startswith("?"):
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
        _set_type(field, kind[1:])
    else:
        _set_type(field, kind)


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="tinker_backend/wire.proto", package=_PACKAGE, syntax="proto3")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _ONEOFS:
            message.oneof_decl.add(name=_ONEOFS[name])
        for number, field_name, kind in fields:
            _add_field(message, number, field_name, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_CLASSES = _build()

ForwardBackwardRequest: Any = _CLASSES["ForwardBackwardRequest"]
ForwardBackwardOutput: Any = _CLASSES["ForwardBackwardOutput"]
SampleResponse: Any = _CLASSES["SampleResponse"]
Tensor: Any = _CLASSES["Tensor"]

DTYPE_FLOAT32, DTYPE_INT64, DTYPE_INT32, DTYPE_BFLOAT16 = 1, 2, 3, 4
STOP_REASON_STOP, STOP_REASON_LENGTH = 0, 1
