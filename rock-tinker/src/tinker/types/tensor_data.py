"""Tensors of the wire: float32 or int64, dense or compressed sparse rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import ConfigDict

from .base import Request

if TYPE_CHECKING:
    import torch

TensorDtype = Literal["int64", "float32"]
_NUMPY_DTYPES: dict[str, np.dtype[Any]] = {"int64": np.dtype("<i8"), "float32": np.dtype("<f4")}


def wire_dtype(dtype: np.dtype[Any]) -> TensorDtype:
    """The wire type of a numpy type: float kinds to float32, signed integers to int64.

    Raises ValueError for unsigned, boolean and other kinds.
    """
    if dtype.kind == "f":
        return "float32"
    if dtype.kind == "i":
        return "int64"
    raise ValueError(f"Unsupported numpy dtype: {dtype}")


class TensorData:
    """A tensor as it travels.

    Args:
        data: Values, flat in C order (an array of any shape is flattened); for a sparse tensor only the listed ones.
        dtype: ``"int64"`` or ``"float32"``.
        shape: Dense shape. Required for sparse tensors; None means one dimension.
        sparse_crow_indices: Row pointers (rows + 1 entries) of a CSR tensor.
        sparse_col_indices: Column of each value of a CSR tensor.

    Raises:
        TypeError: Without ``dtype``.
        ValueError: For an unknown ``dtype`` or a shape that does not fit the data.
    """

    dtype: TensorDtype
    shape: list[int] | None = None
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None

    def __init__(
        self,
        data: list[int] | list[float] | np.ndarray | None = None,
        dtype: TensorDtype | None = None,
        shape: list[int] | None = None,
        sparse_crow_indices: list[int] | None = None,
        sparse_col_indices: list[int] | None = None,
    ) -> None:
        if dtype is None:
            raise TypeError("TensorData requires `dtype`")
        if dtype not in _NUMPY_DTYPES:
            raise ValueError(f"Unsupported TensorDtype: {dtype}")
        values = np.asarray([] if data is None else data)
        self.dtype = dtype
        self._values = np.ascontiguousarray(values.astype(_NUMPY_DTYPES[dtype], copy=False)).reshape(-1)
        self.shape = None if shape is None else [int(size) for size in shape]
        self.sparse_crow_indices = _ints(sparse_crow_indices)
        self.sparse_col_indices = _ints(sparse_col_indices)
        if not self.is_sparse and self.shape is not None and math.prod(self.shape) != self._values.size:
            raise ValueError(
                f"cannot reshape array of size {self._values.size} into shape ({','.join(map(str, self.shape))})"
            )

    @property
    def data(self) -> list[int] | list[float]:
        """Values as a flat list."""
        return self._values.tolist()

    @property
    def values(self) -> np.ndarray:
        """Values as a flat array of the wire type, without a copy."""
        return self._values

    @property
    def is_sparse(self) -> bool:
        return self.sparse_crow_indices is not None

    @property
    def byte_size(self) -> int:
        """Bytes of values, plus 8 a sparse index: what a request is charged for this tensor."""
        indices = len(self.sparse_crow_indices or ()) + len(self.sparse_col_indices or ())
        return int(self._values.nbytes) + 8 * indices

    @classmethod
    def from_numpy(cls, array: np.ndarray) -> TensorData:
        """A dense tensor; raises ValueError for unsigned and boolean arrays."""
        return cls(array, wire_dtype(array.dtype), list(array.shape))

    @classmethod
    def from_torch(cls, tensor: torch.Tensor) -> TensorData:
        """A dense tensor; gradients are dropped, bfloat16 is widened."""
        return cls.from_numpy(_torch_to_numpy(tensor))

    @classmethod
    def from_torch_sparse(cls, tensor: torch.Tensor, pad_value: int = 0) -> TensorData:
        """CSR of a two-dimensional tensor when that is smaller than dense, else dense.

        Cells equal to ``pad_value`` are left out. CSR is taken only if (rows + 1) + 2 * nnz < rows * columns.
        """
        array = _torch_to_numpy(tensor)
        if array.ndim != 2:
            raise ValueError(f"from_torch_sparse takes a tensor of 2 dimensions, got shape {list(array.shape)}")
        rows, columns = array.shape
        row_ids, col_ids = np.nonzero(array != pad_value)
        if (rows + 1) + 2 * row_ids.size >= rows * columns:
            return cls.from_numpy(array)
        crow = np.concatenate([[0], np.cumsum(np.bincount(row_ids, minlength=rows))])
        return cls(array[row_ids, col_ids], wire_dtype(array.dtype), [rows, columns], crow.tolist(), col_ids.tolist())

    def to_numpy(self, pad_value: int = 0) -> np.ndarray:
        """A dense array of ``shape``; cells that a sparse tensor does not list become ``pad_value``."""
        if not self.is_sparse:
            return self._values if self.shape is None else self._values.reshape(self.shape)
        if self.shape is None or len(self.shape) != 2 or self.sparse_col_indices is None:
            raise ValueError(f"a sparse TensorData needs a shape of 2 dimensions and column indices, got {self!r}")
        dense = np.full(self.shape, pad_value, dtype=self._values.dtype)
        crow = np.asarray(self.sparse_crow_indices, dtype=np.int64)
        counts = crow[1:] - crow[:-1]
        dense[np.repeat(np.arange(self.shape[0]), counts), self.sparse_col_indices] = self._values
        return dense

    def to_torch(self, pad_value: int = 0) -> torch.Tensor:
        """A dense tensor (a copy) of ``shape``; needs torch."""
        torch = import_torch()
        return torch.from_numpy(self.to_numpy(pad_value).copy())

    def tolist(self, pad_value: int = 0) -> list[Any]:
        """Nested lists of ``shape``."""
        return self.to_numpy(pad_value).tolist()

    def __len__(self) -> int:
        """Number of values."""
        return int(self._values.size)

    def __repr__(self) -> str:
        return (
            f"TensorData(dtype={self.dtype!r}, shape={self.shape}, "
            f"sparse_crow_indices={self.sparse_crow_indices}, sparse_col_indices={self.sparse_col_indices})"
        )


class TensorDataJson(Request):
    """JSON form of :class:`TensorData`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    data: list[int] | list[float]
    dtype: TensorDtype
    shape: list[int] | None = None
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None

    @classmethod
    def of(cls, tensor: TensorData) -> TensorDataJson:
        return cls(
            data=tensor.data,
            dtype=tensor.dtype,
            shape=tensor.shape,
            sparse_crow_indices=tensor.sparse_crow_indices,
            sparse_col_indices=tensor.sparse_col_indices,
        )


def _ints(values: Any) -> list[int] | None:
    return None if values is None else [int(value) for value in values]


def import_torch() -> Any:
    """The torch module; raises ImportError that names the install command."""
    try:
        import torch
    except ImportError as error:
        raise ImportError("PyTorch is not installed; install it with: pip install torch") from error
    return torch


def _torch_to_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype.is_floating_point:
        tensor = tensor.float()  # numpy has no bfloat16
    return tensor.numpy()
