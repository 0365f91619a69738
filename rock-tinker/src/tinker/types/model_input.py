"""Chunks of model input: text tokens, images, audio features."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, field_serializer, field_validator

from .base import Request

ImageFormat = Literal["png", "jpeg"]


def _from_base64(value: bytes | str) -> bytes:
    return base64.b64decode(value) if isinstance(value, str) else value


class EncodedTextChunk(Request):
    """Token ids."""

    tokens: Sequence[int]
    type: Literal["encoded_text"] = "encoded_text"

    @property
    def length(self) -> int:
        """Positions that this chunk takes in the context."""
        return len(self.tokens)


class ImageChunk(Request):
    """An image, inline. ``data`` takes raw bytes or base64 text; JSON carries base64."""

    data: bytes
    format: ImageFormat
    expected_tokens: int | None = None
    type: Literal["image"] = "image"

    @field_validator("data", mode="before")
    @classmethod
    def validate_data(cls, value: bytes | str) -> bytes:
        return _from_base64(value)

    @field_serializer("data")
    def serialize_data(self, value: bytes) -> str:
        return base64.b64encode(value).decode("ascii")

    @property
    def length(self) -> int:
        """Positions that this chunk takes; raises ValueError unless ``expected_tokens`` is set."""
        return _expected(self)


class ImageAssetPointerChunk(Request):
    """An image that the server fetches from ``location`` (sampling only)."""

    format: ImageFormat
    location: str
    expected_tokens: int | None = None
    type: Literal["image_asset_pointer"] = "image_asset_pointer"

    @property
    def length(self) -> int:
        """Positions that this chunk takes; raises ValueError unless ``expected_tokens`` is set."""
        return _expected(self)


def _expected(chunk: ImageChunk | ImageAssetPointerChunk) -> int:
    if chunk.expected_tokens is None:
        raise ValueError(
            f"the length of this {type(chunk).__name__} is not known here: give it expected_tokens, the number of "
            "positions that it takes"
        )
    return chunk.expected_tokens


class DmelChunk(Request):
    """Discretised mel spectrogram in a tensor container: one position a row (dimension 0)."""

    dmel: bytes
    type: Literal["dmel"] = "dmel"

    @field_validator("dmel", mode="before")
    @classmethod
    def validate_dmel(cls, value: bytes | str) -> bytes:
        return _from_base64(value)

    @field_serializer("dmel")
    def serialize_dmel(self, value: bytes) -> str:
        return base64.b64encode(value).decode("ascii")

    @property
    def length(self) -> int:
        """Dimension 0 of the tensor; raises ValueError for a broken header."""
        return _first_dimension(self.dmel)


_CONTAINER_MARKER = 254
_CONTAINER_DTYPES = 8


def _first_dimension(container: bytes) -> int:
    """Read a tensor container header: [marker 254] dtype, then LEB128 ndim and dimensions."""
    offset = 1 if container[:1] == bytes([_CONTAINER_MARKER]) else 0
    if len(container) <= offset:
        raise ValueError("dmel is empty: it must hold a serialized tensor")
    if container[offset] >= _CONTAINER_DTYPES:
        raise ValueError(f"dmel names dtype {container[offset]}; known are 0 to {_CONTAINER_DTYPES - 1}")
    ndim, offset = _leb128(container, offset + 1)
    if ndim == 0:
        raise ValueError("dmel holds a tensor without dimensions; it needs at least one")
    return _leb128(container, offset)[0]


def _leb128(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if offset >= len(data) or shift > 63:
            raise ValueError("dmel ends within its header")
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        offset += 1
        shift += 7
        if not byte & 0x80:
            return value, offset


ModelInputChunk = Annotated[
    EncodedTextChunk | ImageAssetPointerChunk | ImageChunk | DmelChunk, Field(discriminator="type")
]


class ModelInput(Request):
    """What the model reads: chunks in order. Immutable; ``append`` gives a new one."""

    chunks: list[ModelInputChunk]

    @classmethod
    def from_ints(cls, tokens: list[int]) -> ModelInput:
        """One text chunk."""
        return cls(chunks=[EncodedTextChunk(tokens=tokens)])

    def to_ints(self) -> list[int]:
        """All token ids; raises ValueError if a chunk is not text."""
        if not all(isinstance(chunk, EncodedTextChunk) for chunk in self.chunks):
            kinds = [type(chunk) for chunk in self.chunks]
            raise ValueError(f"to_ints only supported for ModelInput with EncodedTextChunks, got {kinds}")
        return [token for chunk in self.chunks if isinstance(chunk, EncodedTextChunk) for token in chunk.tokens]

    @property
    def length(self) -> int:
        """Positions in the context, over all chunks."""
        return sum(chunk.length for chunk in self.chunks)

    @classmethod
    def empty(cls) -> ModelInput:
        return cls(chunks=[])

    def append(self, chunk: ModelInputChunk) -> ModelInput:
        """A new input with one more chunk."""
        return ModelInput(chunks=[*self.chunks, chunk])

    def append_int(self, token: int) -> ModelInput:
        """A new input with one more token."""
        return self.append(EncodedTextChunk(tokens=[token]))
