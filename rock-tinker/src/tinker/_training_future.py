"""The future of a TrainingClient that can be used like the client."""

from __future__ import annotations

from ._backcompat import BackcompatClientFuture, forwarding
from ._training import TrainingClient


@forwarding(TrainingClient)
class BackcompatTrainingClientFuture(BackcompatClientFuture[TrainingClient], TrainingClient):
    """Await it, or call ``.result()``, to get the TrainingClient."""
