"""A call on its way from the socket to the engine. Free of torch, so that the socket is served while torch loads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tinker_backend.runtime.roles import RunSpec

Reply = Callable[[Any], None]
"""Takes a result, or a RuntimeFault."""


@dataclass
class Call:
    """A call that waits for its turn."""

    method: str
    params: dict[str, Any]
    reply: Reply
    part: Callable[[Any], None] | None = None
    """Sends something before the reply, for a call whose params ask for ``stream``."""
    arrived: float = field(default_factory=time.monotonic)

    def runs(self) -> set[str]:
        """Runs that this call touches."""
        if self.method == "forward_backward":
            return {request.run_id for request in self.params["batch"]}
        run = self.params.get("run")
        return {run.run_id if isinstance(run, RunSpec) else str(self.params.get("run_id"))}
