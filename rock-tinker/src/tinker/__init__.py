"""The Tinker SDK: training loops in Python against a Tinker server.

Importing this package is cheap: each name loads its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __title__, __version__
from ._version import __wheel_version__ as __wheel_version__

if TYPE_CHECKING:
    from httpx import Timeout

    from . import auth, types
    from ._admin import AdminClient
    from ._api_response import APIResponse as APIResponse
    from ._api_response import AsyncAPIResponse as AsyncAPIResponse
    from ._api_response import RequestOptions
    from ._errors import (
        APIConnectionError,
        APIError,
        APIResponseValidationError,
        APIStatusError,
        APITimeoutError,
        AuthenticationError,
        BadRequestError,
        BillingError,
        ConflictError,
        ExperimentalWarning,
        InternalServerError,
        NotFoundError,
        PermissionDeniedError,
        RateLimitError,
        RequestFailedError,
        TinkerError,
        UnprocessableEntityError,
    )
    from ._futures import APIFuture
    from ._loss_handle import LossHandle, PerDatumLossFn
    from ._rest import RestClient
    from ._sampling import SamplingClient
    from ._sampling_future import BackcompatSamplingClientFuture
    from ._service import ServiceClient
    from ._training import TrainingClient
    from ._training_future import BackcompatTrainingClientFuture
    from .types import (
        AdamOptimizerConfig,
        AdamParams,
        Checkpoint,
        CheckpointType,
        Datum,
        DimuonOptimizerConfig,
        DimuonParams,
        DmelChunk,
        EncodedTextChunk,
        ForwardBackwardOutput,
        LoraConfig,
        ModelID,
        ModelInput,
        ModelInputChunk,
        OptimParams,
        OptimStepRequest,
        OptimStepResponse,
        ParsedCheckpointTinkerPath,
        PromptProvenanceSpan,
        SampledProvenanceSpan,
        SampledSequence,
        SampleRequest,
        SampleResponse,
        SamplingParams,
        StopReason,
        TensorData,
        TensorDtype,
        TrainingRun,
    )

_NAMES = {
    "._admin": "AdminClient",
    "._errors": (
        "APIConnectionError APIError APIResponseValidationError APIStatusError APITimeoutError AuthenticationError "
        "BadRequestError BillingError ConflictError ExperimentalWarning InternalServerError NotFoundError "
        "PermissionDeniedError RateLimitError RequestFailedError TinkerError UnprocessableEntityError"
    ),
    "._api_response": "APIResponse AsyncAPIResponse RequestOptions",
    "._futures": "APIFuture",
    "._loss_handle": "LossHandle PerDatumLossFn",
    "._rest": "RestClient",
    "._sampling": "SamplingClient",
    "._sampling_future": "BackcompatSamplingClientFuture",
    "._service": "ServiceClient",
    "._training": "TrainingClient",
    "._training_future": "BackcompatTrainingClientFuture",
    ".types": (
        "AdamOptimizerConfig AdamParams Checkpoint CheckpointType Datum DimuonOptimizerConfig DimuonParams DmelChunk "
        "EncodedTextChunk ForwardBackwardOutput LoraConfig ModelID ModelInput ModelInputChunk OptimParams "
        "OptimStepRequest OptimStepResponse ParsedCheckpointTinkerPath PromptProvenanceSpan SampledProvenanceSpan "
        "SampledSequence SampleRequest SampleResponse SamplingParams StopReason TensorData TensorDtype TrainingRun"
    ),
    "httpx": "Timeout",
}
_MODULES = ("auth", "types", "resources", "lib")
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIFuture",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "AdamOptimizerConfig",
    "AdamParams",
    "AdminClient",
    "AuthenticationError",
    "BackcompatSamplingClientFuture",
    "BackcompatTrainingClientFuture",
    "BadRequestError",
    "BillingError",
    "Checkpoint",
    "CheckpointType",
    "ConflictError",
    "Datum",
    "DimuonOptimizerConfig",
    "DimuonParams",
    "DmelChunk",
    "EncodedTextChunk",
    "ExperimentalWarning",
    "ForwardBackwardOutput",
    "InternalServerError",
    "LoraConfig",
    "LossHandle",
    "ModelID",
    "ModelInput",
    "ModelInputChunk",
    "NotFoundError",
    "OptimParams",
    "OptimStepRequest",
    "OptimStepResponse",
    "ParsedCheckpointTinkerPath",
    "PerDatumLossFn",
    "PermissionDeniedError",
    "PromptProvenanceSpan",
    "RateLimitError",
    "RequestFailedError",
    "RequestOptions",
    "RestClient",
    "SampleRequest",
    "SampleResponse",
    "SampledProvenanceSpan",
    "SampledSequence",
    "SamplingClient",
    "SamplingParams",
    "ServiceClient",
    "StopReason",
    "TensorData",
    "TensorDtype",
    "Timeout",
    "TinkerError",
    "TrainingClient",
    "TrainingRun",
    "UnprocessableEntityError",
    "__title__",
    "__version__",
    "auth",
    "types",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'tinker' has no attribute {name!r}")
    value = getattr(importlib.import_module(home, __name__ if home.startswith(".") else None), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOME, *_MODULES, "__wheel_version__"})
