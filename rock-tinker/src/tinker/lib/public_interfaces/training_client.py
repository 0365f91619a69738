"""The client of a training run."""

from ..._training import TrainingClient

__all__ = ["TrainingClient"]
