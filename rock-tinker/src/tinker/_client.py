"""What all clients share."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from ._futures import AwaitableConcurrentFuture, start
from ._headers import sdk_method
from ._holder import Holder
from ._telemetry import Telemetry

T = TypeVar("T")


class Client:
    """Starts work on the loop of the SDK under the name of the public method."""

    holder: Holder

    def _start(self, method: str, work: Coroutine[Any, Any, T]) -> AwaitableConcurrentFuture[T]:
        with sdk_method(f"{type(self).__name__}.{method}"):
            return start(self.holder.observed(work))

    def get_telemetry(self) -> Telemetry | None:
        """The event queue of this client's connection; None before the first request."""
        return self.holder.telemetry
