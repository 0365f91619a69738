"""Recipes and library on top of the Tinker SDK.

Nothing heavy is imported here: ``import tinker_cookbook`` costs a few milliseconds. Import the module that you need,
for example ``from tinker_cookbook import renderers`` or ``from tinker_cookbook.rl import train``.
"""

from tinker_cookbook.exceptions import (
    AllTrajectoriesFailedError,
    BenchmarkNotFoundError,
    CheckpointError,
    ConfigurationError,
    DataError,
    DataFormatError,
    DataValidationError,
    EvalError,
    EvalGradingError,
    EvalTimeoutError,
    RendererError,
    SandboxError,
    TinkerCookbookError,
    TrainingError,
    WeightsAdapterError,
    WeightsDownloadError,
    WeightsError,
    WeightsMergeError,
)

__version__ = "0.1.0"

__all__ = [
    "AllTrajectoriesFailedError",
    "BenchmarkNotFoundError",
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "DataFormatError",
    "DataValidationError",
    "EvalError",
    "EvalGradingError",
    "EvalTimeoutError",
    "RendererError",
    "SandboxError",
    "TinkerCookbookError",
    "TrainingError",
    "WeightsAdapterError",
    "WeightsDownloadError",
    "WeightsError",
    "WeightsMergeError",
    "__version__",
]
