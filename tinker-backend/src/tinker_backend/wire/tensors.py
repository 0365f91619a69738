"""Tensors on the wire: protobuf ``Tensor`` and JSON ``TensorData``, dense or CSR, to and from numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadRequest
from ..runtime.roles import Array, CsrArray
from . import schema

_DTYPES: dict[int, str] = {schema.DTYPE_FLOAT32: "<f4", schema.DTYPE_INT64: "<i8", schema.DTYPE_INT32: "<i4"}
_JSON_DTYPES = {"float32": "<f4", "int64": "<i8"}


def tensor_from_proto(tensor: Any, field: str) -> Array | CsrArray:
    """Decodes a protobuf Tensor: float32 stays, integers become int64, bfloat16 is widened. Raises BadRequest."""
    shape = tuple(tensor.shape)
    encoding = tensor.WhichOneof("encoding")
    if encoding == "sparse_csr":
        csr = tensor.sparse_csr
        values = _blob(csr.values, tensor.dtype, f"{field}.sparse_csr.values")
        crow = _blob(csr.crow_indices, schema.DTYPE_INT64, f"{field}.sparse_csr.crow_indices")
        col = _blob(csr.col_indices, schema.DTYPE_INT64, f"{field}.sparse_csr.col_indices")
        return checked_csr(values, crow, col, shape, field)
    if encoding is None and math.prod(shape) != 0:
        raise BadRequest(f"{field} has neither dense nor sparse data")
    return _shaped(_blob(tensor.dense, tensor.dtype, f"{field}.dense"), shape, field)


def tensor_from_json(value: Any, field: str) -> Array | CsrArray:
    """Decodes a JSON TensorData ``{data, dtype, shape?, sparse_crow_indices?, sparse_col_indices?}``."""
    if not isinstance(value, Mapping):
        raise BadRequest(f"{field} must be an object with data, dtype and shape, not a {type(value).__name__}")
    dtype = _JSON_DTYPES.get(str(value.get("dtype")))
    if dtype is None:
        raise BadRequest(f"{field}.dtype is {value.get('dtype')!r}; it must be float32 or int64")
    data = _list_to_array(value.get("data"), dtype, f"{field}.data")
    shape = value.get("shape")
    if shape is not None and not (isinstance(shape, list) and all(type(n) is int for n in shape)):
        raise BadRequest(f"{field}.shape must be a list of integers, not {shape!r}")
    if value.get("sparse_crow_indices") is not None or value.get("sparse_col_indices") is not None:
        crow = _list_to_array(value.get("sparse_crow_indices"), "<i8", f"{field}.sparse_crow_indices")
        col = _list_to_array(value.get("sparse_col_indices"), "<i8", f"{field}.sparse_col_indices")
        return checked_csr(data, crow, col, tuple(shape or ()), field)
    return _shaped(data, tuple(shape) if shape is not None else (data.size,), field)


def tensor_to_proto(value: Array | CsrArray, target: Any) -> None:
    """Fills a protobuf Tensor with a float32 or integer array."""
    values = value.values if isinstance(value, CsrArray) else value
    dtype, code = ("<f4", schema.DTYPE_FLOAT32) if values.dtype.kind == "f" else ("<i8", schema.DTYPE_INT64)
    target.dtype = code
    target.shape.extend(int(n) for n in value.shape)
    if isinstance(value, CsrArray):
        target.sparse_csr.values = values.astype(dtype).tobytes()
        target.sparse_csr.crow_indices = value.crow_indices.astype("<i8").tobytes()
        target.sparse_csr.col_indices = value.col_indices.astype("<i8").tobytes()
    else:
        target.dense = np.ascontiguousarray(values, dtype=dtype).tobytes()


def tensor_to_json(value: Array | CsrArray) -> dict[str, Any]:
    """The JSON TensorData of an array. NaN becomes None."""
    values = value.values if isinstance(value, CsrArray) else value
    document: dict[str, Any] = {
        "data": json_numbers(values.reshape(-1)),
        "dtype": "float32" if values.dtype.kind == "f" else "int64",
        "shape": [int(n) for n in value.shape],
    }
    if isinstance(value, CsrArray):
        document["sparse_crow_indices"] = value.crow_indices.tolist()
        document["sparse_col_indices"] = value.col_indices.tolist()
    return document


def json_numbers(values: Array) -> list[Any]:
    """A flat list for JSON; NaN becomes None."""
    if values.dtype.kind == "f" and np.isnan(values).any():
        return [None if math.isnan(x) else x for x in values.tolist()]
    return values.tolist()


def checked_csr(values: Array, crow: Array, col: Array, shape: Sequence[int], field: str) -> CsrArray:
    """A CsrArray whose indices are sound. Raises BadRequest."""
    if len(shape) != 2 or min(shape) < 0:
        raise BadRequest(f"{field} is sparse, so its shape must have two sizes, not {list(shape)}")
    rows, columns = int(shape[0]), int(shape[1])
    if crow.size != rows + 1 or crow[0] != 0 or crow[-1] != col.size or (np.diff(crow) < 0).any():
        raise BadRequest(f"{field}.sparse_crow_indices must rise from 0 to {col.size} over {rows + 1} entries")
    if col.size != values.size:
        raise BadRequest(f"{field} lists {values.size} values for {col.size} column indices")
    if col.size and (int(col.min()) < 0 or int(col.max()) >= columns):
        raise BadRequest(f"{field}.sparse_col_indices must lie in 0..{columns - 1}")
    return CsrArray(values, crow.astype(np.int64), col.astype(np.int64), (rows, columns))


def _blob(data: bytes, dtype: int, field: str) -> Array:
    if dtype == schema.DTYPE_BFLOAT16:
        if len(data) % 2:
            raise BadRequest(f"{field} holds {len(data)} bytes, which is no multiple of 2")
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    numpy_dtype = _DTYPES.get(dtype)
    if numpy_dtype is None:
        raise BadRequest(f"{field} has dtype {dtype}; it must be FLOAT32, INT64, INT32 or BFLOAT16")
    size = int(numpy_dtype[-1])
    if len(data) % size:
        raise BadRequest(f"{field} holds {len(data)} bytes, which is no multiple of {size}")
    array = np.frombuffer(data, numpy_dtype)
    return array.astype(np.int64) if dtype == schema.DTYPE_INT32 else array


def _shaped(data: Array, shape: tuple[int, ...], field: str) -> Array:
    if any(n < 0 for n in shape) or math.prod(shape) != data.size:
        raise BadRequest(f"{field} has shape {list(shape)} but {data.size} values")
    return data.reshape(shape)


def _list_to_array(value: Any, dtype: str, field: str) -> Array:
    if not isinstance(value, list):
        raise BadRequest(f"{field} must be a flat list of numbers")
    try:
        array = np.array(value)
        if value and (array.ndim != 1 or array.dtype.kind not in ("iu" if dtype == "<i8" else "iuf")):
            raise ValueError
        return array.astype(dtype)
    except (ValueError, TypeError, OverflowError) as error:
        kind = "integers" if dtype == "<i8" else "numbers"
        raise BadRequest(f"{field} must be a flat list of {kind}") from error
