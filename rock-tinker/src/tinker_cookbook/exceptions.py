"""Every exception of the cookbook.

::

    TinkerCookbookError
    ├── ConfigurationError (ValueError)
    ├── DataError (ValueError)
    │   ├── DataFormatError
    │   └── DataValidationError
    ├── RendererError (ValueError)
    ├── TrainingError (RuntimeError)
    │   ├── CheckpointError
    │   └── AllTrajectoriesFailedError
    ├── WeightsError
    │   ├── WeightsDownloadError (RuntimeError)
    │   ├── WeightsMergeError (ValueError)
    │   └── WeightsAdapterError (ValueError)
    ├── SandboxError (RuntimeError)
    └── EvalError (RuntimeError)
        ├── EvalTimeoutError (TimeoutError)
        ├── EvalGradingError
        └── BenchmarkNotFoundError (KeyError)

The builtin in parentheses is a second base, so that ``except ValueError`` keeps working.
"""


class TinkerCookbookError(Exception):
    """Base of all errors that the cookbook raises on purpose."""


class ConfigurationError(TinkerCookbookError, ValueError):
    """A configuration value is missing, unknown or contradicts another one."""


class DataError(TinkerCookbookError, ValueError):
    """Training or evaluation data cannot be used."""


class DataFormatError(DataError):
    """A file or row does not have the expected form."""


class DataValidationError(DataError):
    """A row has the right form and a wrong value."""


class RendererError(TinkerCookbookError, ValueError):
    """A conversation cannot be rendered, or a renderer name is unknown."""


class TrainingError(TinkerCookbookError, RuntimeError):
    """A training run cannot go on."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be saved, found or loaded."""


class AllTrajectoriesFailedError(TrainingError):
    """No rollout of a group survived."""


class WeightsError(TinkerCookbookError):
    """Weights cannot be downloaded, converted or published."""


class WeightsDownloadError(WeightsError, RuntimeError):
    """The archive of a checkpoint cannot be fetched or unpacked."""


class WeightsMergeError(WeightsError, ValueError):
    """An adapter does not fit its base model."""


class WeightsNotFoundError(WeightsError, ValueError, FileNotFoundError):
    """A folder or file of weights is not there."""


class WeightsExistError(WeightsError, ValueError, FileExistsError):
    """Something is in the output folder already."""


class WeightsAdapterError(WeightsError, ValueError):
    """An adapter folder is incomplete or of an unknown form."""


class SandboxError(TinkerCookbookError, RuntimeError):
    """A sandbox failed for reasons of its own, not of the command in it."""


class EvalError(TinkerCookbookError, RuntimeError):
    """An evaluation cannot be run."""


class EvalTimeoutError(EvalError, TimeoutError):
    """An evaluation example passed its deadline."""


class EvalGradingError(EvalError):
    """A response cannot be graded."""


class BenchmarkNotFoundError(EvalError, KeyError):
    """No benchmark is registered under that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


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
    "WeightsExistError",
    "WeightsNotFoundError",
]
