"""Model inputs: chunks of encoded text to one array of token ids. Other chunk kinds are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadRequest

Tokens = npt.NDArray[np.int32]

_REFUSAL = "{field} is {kind}: the models of this server take text only (encoded_text chunks)"


def tokens_from_proto(chunks: Any, field: str) -> Tokens:
    """Token ids (N,) of a repeated protobuf Chunk. Raises BadRequest."""
    parts: list[Tokens] = []
    for i, chunk in enumerate(chunks):
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise BadRequest(_REFUSAL.format(field=f"{field}[{i}]", kind=f"a chunk of kind {kind}"))
        blob = chunk.encoded_text.tokens
        if len(blob) % 4:
            raise BadRequest(f"{field}[{i}].tokens holds {len(blob)} bytes, which is no multiple of 4")
        parts.append(np.frombuffer(blob, "<i4"))
    return _joined(parts)


def tokens_from_json(value: Any, field: str) -> Tokens:
    """Token ids (N,) of a JSON ModelInput ``{"chunks": [...]}``. Raises BadRequest."""
    chunks = value.get("chunks") if isinstance(value, Mapping) else None
    if not isinstance(chunks, list):
        raise BadRequest(f'{field} must be an object {{"chunks": [...]}}')
    parts: list[Tokens] = []
    for i, chunk in enumerate(chunks):
        where = f"{field}.chunks[{i}]"
        if not isinstance(chunk, Mapping):
            raise BadRequest(f"{where} must be an object")
        kind = chunk.get("type", "encoded_text")
        if kind != "encoded_text":
            raise BadRequest(_REFUSAL.format(field=where, kind=f"a chunk of type {kind}"))
        parts.append(token_array(chunk.get("tokens"), f"{where}.tokens"))
    return _joined(parts)


def token_array(value: Any, field: str) -> Tokens:
    """A list of token ids as an int32 array. Raises BadRequest."""
    if not isinstance(value, list):
        raise BadRequest(f"{field} must be a list of token ids")
    if not value:
        return np.zeros(0, np.int32)
    try:
        array = np.array(value)
    except (ValueError, OverflowError) as error:
        raise BadRequest(f"{field} must be a flat list of token ids") from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise BadRequest(f"{field} must be a flat list of integers")
    if int(array.min()) < 0 or int(array.max()) > 2**31 - 1:
        raise BadRequest(f"{field} holds token ids outside 0..{2**31 - 1}")
    return array.astype(np.int32)


def _joined(parts: list[Tokens]) -> Tokens:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)
