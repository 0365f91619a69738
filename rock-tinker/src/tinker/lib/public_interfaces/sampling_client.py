"""The client of samples."""

from ..._sampling import SamplingClient

__all__ = ["SamplingClient"]
