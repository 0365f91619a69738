"""One training example: model input and the tensors that the loss reads."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from .model_input import ModelInput
from .provenance import ProvenanceSpans
from .tensor_data import TensorData, TensorDtype

LossFnInputs = dict[str, TensorData]

_KEY_DTYPES: dict[str, TensorDtype] = {
    "target_tokens": "int64",
    "weights": "float32",
    "advantages": "float32",
    "logprobs": "float32",
    "clip_low_threshold": "float32",
    "clip_high_threshold": "float32",
    "sequence_ratio_mask": "float32",
}
_SPARSE_KEYS = ("target_tokens", "weights")


@dataclass(frozen=True)
class Datum:
    """A training example of N input positions; position i predicts token i + 1.

    ``loss_fn_inputs`` takes TensorData, torch tensors, numpy arrays and (nested, rectangular) lists and holds
    TensorData afterwards. Lists get their type from the key (``target_tokens`` int64, the others float32); a list
    under an unknown key raises KeyError, because its type would be a guess.
    """

    model_input: ModelInput
    loss_fn_inputs: LossFnInputs = field(default_factory=dict)
    model_input_spans: ProvenanceSpans | None = None
    loss_fn_input_spans: ProvenanceSpans | None = None

    def __post_init__(self) -> None:
        inputs = {key: _to_tensor_data(key, value) for key, value in self.loss_fn_inputs.items()}
        object.__setattr__(self, "loss_fn_inputs", inputs)

    def with_provenance(self, model_input: ProvenanceSpans, loss_fn_inputs: ProvenanceSpans) -> Self:
        """The same datum with spans that say where its positions come from.

        Raises ValueError unless the spans tile the input positions, and the loss positions, exactly.
        """
        _check_tiling("model_input", model_input, self.model_input.length)
        _check_tiling("loss_fn_inputs", loss_fn_inputs, self._loss_length())
        return dataclasses.replace(self, model_input_spans=list(model_input), loss_fn_input_spans=list(loss_fn_inputs))

    def _loss_length(self) -> int:
        for tensor in self.loss_fn_inputs.values():
            return tensor.shape[0] if tensor.shape else len(tensor)
        return 0


def _check_tiling(name: str, spans: ProvenanceSpans, length: int) -> None:
    covered = sum(span.length for span in spans)
    if covered != length:
        raise ValueError(
            f"{name} has {length} positions and its provenance spans add up to {covered}; "
            "give spans whose lengths sum to the number of positions"
        )


def _to_tensor_data(key: str, value: Any) -> TensorData:
    if isinstance(value, TensorData):
        return value
    if isinstance(value, list):
        return _from_list(key, value)
    torch = sys.modules.get("torch")  # a torch tensor exists only where torch was imported
    try:
        if isinstance(value, np.ndarray):
            return TensorData.from_numpy(value)
        if torch is not None and isinstance(value, torch.Tensor):
            if value.ndim == 2 and key in _SPARSE_KEYS:
                return TensorData.from_torch_sparse(value)
            return TensorData.from_torch(value)
    except (ValueError, TypeError) as error:
        wanted = _KEY_DTYPES.get(key, "float32 or int64")
        raise type(error)(f"loss_fn_inputs[{key!r}]: {error}; convert it to dense {wanted} first") from error
    raise TypeError(
        f"Unsupported loss_fn_inputs value for {key!r}: {type(value).__name__}; "
        "give a list, a numpy array, a torch tensor or TensorData"
    )


def _from_list(key: str, value: list[Any]) -> TensorData:
    if key not in _KEY_DTYPES:
        near = difflib.get_close_matches(key, _KEY_DTYPES, 1)
        hint = f"did you mean {near[0]!r}?" if near else "give a numpy array, a torch tensor or TensorData"
        raise KeyError(f"the type of the list loss_fn_inputs[{key!r}] is not known; {hint}")
    dtype = _KEY_DTYPES[key]
    try:
        array = np.asarray(value, dtype=np.float32 if dtype == "float32" else np.int64)
    except ValueError as error:
        raise ValueError(f"{key} must be a rectangular numeric array; ragged nested lists are not supported") from error
    return TensorData(array, dtype, list(array.shape))
