"""Telling the user why work waits on the server."""

from __future__ import annotations

import time
from enum import Enum

from ._settings import logger

_LOG_EVERY_SECONDS = 60.0


class QueueState(Enum):
    ACTIVE = "active"
    PAUSED_CAPACITY = "paused_capacity"
    PAUSED_RATE_LIMIT = "paused_rate_limit"
    UNKNOWN = "unknown"

    @classmethod
    def parse(cls, value: object) -> QueueState:
        return cls(value) if value in {state.value for state in cls} else cls.UNKNOWN


class QueueStateObserver:
    """Logs pauses, at most once a minute, and only those that last longer than ``patience`` seconds."""

    def __init__(self, subject: str, patience: float = 0.0) -> None:
        self._subject = subject
        self._patience = patience
        self._paused_since: float | None = None
        self._logged_at = float("-inf")

    def on_queue_state_change(self, queue_state: QueueState, queue_state_reason: str | None) -> None:
        now = time.monotonic()
        if queue_state is QueueState.ACTIVE:
            self._paused_since = None
            return
        if self._paused_since is None:
            self._paused_since = now
        if now - self._paused_since < self._patience or now - self._logged_at < _LOG_EVERY_SECONDS:
            return
        self._logged_at = now
        reason = queue_state_reason or {
            QueueState.PAUSED_CAPACITY: "the server is out of capacity",
            QueueState.PAUSED_RATE_LIMIT: "a rate limit holds",
        }.get(queue_state, "unknown")
        logger.warning("%s is paused: %s", self._subject, reason)
