"""Futures of requests."""

from ..._futures import APIFuture, AwaitableConcurrentFuture

__all__ = ["APIFuture", "AwaitableConcurrentFuture"]
