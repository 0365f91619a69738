"""The error of an expired promise."""

from .._errors import RetryableError as RetryableException

__all__ = ["RetryableException"]
