"""A training client that is still being made."""

from ..._training_future import BackcompatTrainingClientFuture

__all__ = ["BackcompatTrainingClientFuture"]
