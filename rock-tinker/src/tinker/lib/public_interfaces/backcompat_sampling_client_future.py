"""A sampling client that is still being made."""

from ..._sampling_future import BackcompatSamplingClientFuture

__all__ = ["BackcompatSamplingClientFuture"]
