"""Calls and answers between server and runtime: msgpack with numpy arrays and the dataclasses of ``roles``.

A call is ``{"id": int, "method": str, "params": {...}}``; its answer ``{"id": int, "result": ...}`` or
``{"id": int, "fault": {"message": str, "category": str}}``. Answers come in any order.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import numpy as np

from . import roles

_ARRAY = 1
_RECORD = 2
_RECORDS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in vars(roles).values()
    if isinstance(cls, type) and dataclasses.is_dataclass(cls) and cls.__module__ == roles.__name__
}


def _default(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        return msgpack.ExtType(_ARRAY, msgpack.packb((array.dtype.str, value.shape, array.tobytes())))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, roles.RuntimeFault):
        return msgpack.ExtType(_RECORD, pack(("RuntimeFault", {"message": str(value), "category": value.category})))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return msgpack.ExtType(_RECORD, pack((type(value).__name__, fields)))
    raise TypeError(f"cannot send a {type(value).__name__} between server and runtime")


def _ext_hook(code: int, data: bytes) -> Any:
    if code == _ARRAY:
        dtype, shape, raw = msgpack.unpackb(data)
        return np.frombuffer(raw, dtype=np.dtype(dtype)).reshape(shape)
    if code == _RECORD:
        name, fields = unpack(data)
        if name == "RuntimeFault":
            return roles.RuntimeFault(fields["message"], fields["category"])
        if name == "CsrArray":
            fields["shape"] = tuple(fields["shape"])
        return _RECORDS[name](**fields)
    return msgpack.ExtType(code, data)


def pack(message: Any) -> bytes:
    """Encodes a message; arrays become (dtype, shape, bytes), dataclasses (name, fields)."""
    packed: bytes = msgpack.packb(message, default=_default)
    return packed


def unpack(data: bytes) -> Any:
    """Decodes what ``pack`` made. Arrays are read-only views of ``data``; sequences come back as lists."""
    return msgpack.unpackb(data, ext_hook=_ext_hook, strict_map_key=False)
