"""Protobuf message classes of the wire (package ``tinker_public``), built at import time in a private pool.

A private :class:`~google.protobuf.descriptor_pool.DescriptorPool` keeps these classes apart from any other
package in the same process that registers the same message names. All binary blobs inside the messages are
little-endian, C-order.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "tinker_public"
_File = descriptor_pb2.FileDescriptorProto
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
_ENUMS = {
    "DType": ("DTYPE_UNSPECIFIED", "DTYPE_FLOAT32", "DTYPE_INT64", "DTYPE_INT32", "DTYPE_BFLOAT16"),
    "StopReason": ("STOP_REASON_STOP", "STOP_REASON_LENGTH"),
}
# One line a message: "number name type"; "*" = repeated, "?" = explicit presence, "|x" = member of the oneof x,
# "map<V>" = map from string to V.
_MESSAGES: dict[str, tuple[str, ...]] = {
    "ForwardBackwardRequest": (
        "1 model_id string",
        "2 seq_id int32",
        "3 data Datum*",
        "4 loss_fn string",
        "5 loss_fn_config map<double>",
        "6 forward_only bool",
        "7 loss_fn_config_v2 map<LossConfigValue>",
    ),
    "LossConfigValue": ("1 number double|value", "2 text string|value"),
    "Datum": (
        "1 model_input Chunk*",
        "2 loss_fn_inputs map<Tensor>",
        "3 model_input_spans ProvenanceSpan*",
        "4 loss_fn_input_spans ProvenanceSpan*",
    ),
    "ProvenanceSpan": ("1 prompt_tokens PromptProvenanceSpan|span", "2 sampled_tokens SampledProvenanceSpan|span"),
    "PromptProvenanceSpan": ("1 sequence_id string", "2 offset int64", "3 length int64"),
    "SampledProvenanceSpan": ("1 sequence_id string", "2 offset int64", "3 length int64"),
    "Chunk": ("1 encoded_text EncodedTextChunk|chunk", "2 image ImageChunk|chunk", "3 dmel DmelChunk|chunk"),
    "EncodedTextChunk": ("1 tokens bytes",),
    "ImageChunk": (
        "1 data bytes",
        "2 format string",
        "3 expected_tokens int32?",
        "4 override_dimensions ImageDimensions?",
    ),
    "ImageDimensions": ("1 width uint32", "2 height uint32"),
    "DmelChunk": ("1 dmel bytes",),
    "Tensor": ("1 dense bytes|encoding", "2 sparse_csr SparseCsr|encoding", "3 dtype DType", "4 shape int64*"),
    "SparseCsr": ("1 values bytes", "2 crow_indices bytes", "3 col_indices bytes"),
    "ForwardBackwardOutput": (
        "1 loss_fn_output_type string",
        "2 loss_fn_outputs ArrayRecord*",
        "3 metrics map<double>",
    ),
    "ArrayRecord": ("1 type_tag string", "2 fields map<BatchedTensor>", "3 num_datums int64"),
    "BatchedTensor": ("1 data bytes", "2 offsets bytes", "3 dtype DType", "4 trailing_shape int64*"),
    "SampleResponse": (
        "1 sequences SampledSequence*",
        "2 prompt_logprobs bytes?",
        "3 topk_prompt_logprobs TopkLogprobs?",
        "4 prompt_cache_hit_tokens int32",
        "5 target_prompt_logprobs Tensor?",
        "6 prompt_alt_tokens PromptAltTokens?",
    ),
    "SampledSequence": (
        "1 stop_reason StopReason",
        "2 tokens bytes",
        "3 logprobs bytes?",
        "4 topk_sampled_logprobs TopkLogprobs?",
    ),
    "TopkLogprobs": ("1 token_ids bytes", "2 logprobs bytes", "3 k uint32", "4 length uint32"),
    "PromptAltTokens": ("1 tokens Tensor", "2 logprobs Tensor"),
    "SamplingParams": (
        "1 max_tokens int32?",
        "2 seed uint64?",
        "3 temperature float?",
        "4 top_k int32?",
        "5 top_p float?",
        "6 stop_strs StopStrings|stop",
        "7 stop_tokens StopTokens|stop",
    ),
    "StopStrings": ("1 values string*",),
    "StopTokens": ("1 values int32*",),
}


def _set_type(field: Any, type_name: str) -> None:
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
    elif type_name in _ENUMS:
        field.type = _Field.TYPE_ENUM
        field.type_name = f".{_PACKAGE}.{type_name}"
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_name}"


def _add_map(message: Any, field: Any, name: str, value_type: str) -> None:
    entry_name = "".join(part.capitalize() for part in name.split("_")) + "Entry"
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    value = entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL)
    _set_type(value, value_type)
    field.label = _Field.LABEL_REPEATED
    field.type = _Field.TYPE_MESSAGE
    field.type_name = f".{_PACKAGE}.{message.name}.{entry_name}"


def _add_message(file: Any, name: str, lines: tuple[str, ...]) -> None:
    message = file.message_type.add(name=name)
    optional_fields = []
    for line in lines:
        number, field_name, spec = line.split(" ")
        field = message.field.add(name=field_name, number=int(number), label=_Field.LABEL_OPTIONAL)
        if spec.startswith("map<"):
            _add_map(message, field, field_name, spec[4:-1])
            continue
        type_name, _, oneof = spec.partition("|")
        if type_name.endswith("*"):
            field.label = _Field.LABEL_REPEATED
        elif type_name.endswith("?"):
            optional_fields.append(field)
        elif oneof:
            names = [declared.name for declared in message.oneof_decl]
            if oneof not in names:
                message.oneof_decl.add(name=oneof)
                names.append(oneof)
            field.oneof_index = names.index(oneof)
        _set_type(field, type_name.rstrip("*?"))
    for field in optional_fields:  # synthetic oneofs must follow the real ones
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


def _build() -> dict[str, Any]:
    file = _File(name="tinker_public.proto", package=_PACKAGE, syntax="proto3")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, lines in _MESSAGES.items():
        _add_message(file, name, lines)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


_CLASSES = _build()

ForwardBackwardRequest: Any = _CLASSES["ForwardBackwardRequest"]
ForwardBackwardOutput: Any = _CLASSES["ForwardBackwardOutput"]
SampleResponse: Any = _CLASSES["SampleResponse"]
Datum: Any = _CLASSES["Datum"]
Chunk: Any = _CLASSES["Chunk"]
Tensor: Any = _CLASSES["Tensor"]
ProvenanceSpan: Any = _CLASSES["ProvenanceSpan"]

DTYPE_FLOAT32, DTYPE_INT64, DTYPE_INT32, DTYPE_BFLOAT16 = 1, 2, 3, 4
STOP_REASON_STOP, STOP_REASON_LENGTH = 0, 1
