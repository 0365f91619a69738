"""A call on its way from the socket to the engine. Free of torch, so that the socket is served while torch loads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tinker_backend.runtime.roles import OptimParams, RunSpec, RuntimeFault

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


def take_next(queue: deque[Call]) -> list[Call]:
    """Takes the first call; with a forward_backward all others whose runs have nothing else queued before them."""
    if queue[0].method != "forward_backward":
        return [queue.popleft()]
    taken: list[Call] = []
    left: list[Call] = []
    touched: set[str] = set()
    for call in queue:
        runs = call.runs()
        if call.method == "forward_backward" and not runs & touched:
            taken.append(call)
        else:
            left.append(call)
        touched |= runs
    queue.clear()
    queue.extend(left)
    return taken


def trainer_call(trainer: Any, method: str, params: dict[str, Any]) -> Any:
    """Calls the method of a Trainer that a call names. Raises RuntimeFault (server) for a method that is none."""
    if method == "create":
        return trainer.create(params["run"])
    if method == "optim_step":
        given = params["params"]
        return trainer.optim_step(params["run_id"], given if isinstance(given, OptimParams) else OptimParams(**given))
    if method == "save":
        return trainer.save(params["run_id"], params["path"], params["kind"])
    if method == "load":
        return trainer.load(params["run"], params["path"], params["optimizer"])
    if method == "drop_run":
        return trainer.drop(params["run_id"])
    raise RuntimeFault(f"method {method!r} is unknown", "server")
