"""Which operation killed the runtime, and when to stop trying it."""

from __future__ import annotations

from typing import Protocol

from ..errors import OperationFailure
from ..supervisor import Death

SUSPECT_AFTER = 2
"""Deaths after which an operation runs alone."""
_LIMIT_CRASH = 3
_LIMIT_OUTSIDE = 10
"""A SIGKILL from outside says little about the operation, so it is tried longer."""


class Mortal(Protocol):
    """What counts its deaths."""

    deaths: int
    died_alone: int


def is_suspect(operation: Mortal) -> bool:
    """Whether the operation must run with nothing else under way."""
    return operation.deaths >= SUSPECT_AFTER


def blame(operation: Mortal, death: Death | None, alone: bool) -> OperationFailure | None:
    """Counts a death. Returns the failure once the operation must be given up."""
    operation.deaths += 1
    if not alone:
        return None
    operation.died_alone += 1
    limit = _LIMIT_OUTSIDE if death is not None and death.outside else _LIMIT_CRASH
    if operation.deaths < limit:
        return None
    reason = death.reason if death is not None else "the runtime ended"
    return OperationFailure(
        f"the runtime died {operation.deaths} times while it worked on this operation ({reason}); it is not tried "
        "again. Send less at once, or look into the runtime's log",
        "server",
    )
