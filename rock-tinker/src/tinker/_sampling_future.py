"""The future of a SamplingClient that can be used like the client."""

from __future__ import annotations

from typing import Any

from ._backcompat import BackcompatClientFuture, forwarding
from ._sampling import SamplingClient


@forwarding(SamplingClient)
class BackcompatSamplingClientFuture(BackcompatClientFuture[SamplingClient], SamplingClient):
    """Await it, or call ``.result()``, to get the SamplingClient."""

    def __reduce__(self) -> Any:
        return self.result().__reduce__()
