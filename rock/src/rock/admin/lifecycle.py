"""States of a sandbox and the events between them."""

from __future__ import annotations

import time
from typing import Any

PENDING, RUNNING, STOPPED, DELETED = "pending", "running", "stopped", "deleted"
MAX_HISTORY = 100

TRANSITIONS: dict[tuple[str, str], str] = {
    (PENDING, "alive"): RUNNING,
    (PENDING, "start_failed"): STOPPED,
    (PENDING, "stop"): STOPPED,
    (PENDING, "lost"): STOPPED,
    (RUNNING, "stop"): STOPPED,
    (RUNNING, "auto_clear"): STOPPED,
    (RUNNING, "ended"): STOPPED,
    (RUNNING, "lost"): STOPPED,
    (STOPPED, "restart"): PENDING,
    (STOPPED, "delete"): DELETED,
}


class WrongState(Exception):
    """The event is not possible in the present state."""


def apply_event(record: dict[str, Any], event: str, reason: str = "") -> None:
    """Moves a record to its next state and notes it in its history.

    Raises:
        WrongState: the event is not possible.
    """
    before = record["state"]
    after = TRANSITIONS.get((before, event))
    if after is None:
        raise WrongState(f"sandbox {record['sandbox_id']} is {before}: {event.replace('_', ' ')} is not possible")
    now = time.time()
    record["state"] = after
    record["reason"] = reason
    record[{RUNNING: "start_time", STOPPED: "stop_time", DELETED: "delete_time", PENDING: "create_time"}[after]] = now
    entry = {"from_state": before, "to_state": after, "event": event, "timestamp": now, "reason": reason}
    record["state_history"] = [*record["state_history"], entry][-MAX_HISTORY:]
