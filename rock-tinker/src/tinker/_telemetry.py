"""Events about the life of a client, sent in the background and dropped when the server does not take them."""

from __future__ import annotations

import asyncio
import platform
import time
import traceback
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from ._errors import RequestFailedError, TinkerError
from ._http import Call
from ._settings import logger, telemetry_enabled
from ._version import __version__
from .types.telemetry import (
    GenericEvent,
    SessionEndEvent,
    SessionStartEvent,
    Severity,
    TelemetryEvent,
    TelemetrySendRequest,
    UnhandledExceptionEvent,
)

_QUEUE_LIMIT = 10_000
_BATCH_LIMIT = 100
FLUSH_SECONDS = 10.0
_TIMEOUT_SECONDS = 5.0
PROCESS_UUID = str(uuid.uuid4())

Send = Callable[[Call], Awaitable[Any]]


class Telemetry:
    """The queue of one connection holder."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._queue: deque[TelemetryEvent] = deque(maxlen=_QUEUE_LIMIT)
        self._session_id = f"sessionless-{uuid.uuid4()}"
        self._count = 0
        self._started = time.monotonic()
        self._lock = asyncio.Lock()

    def begin_session(self, session_id: str) -> None:
        self._session_id = session_id
        self._put(SessionStartEvent, "SESSION_START", "INFO")

    def log(self, event_name: str, event_data: dict[str, Any] | None = None, severity: Severity = "INFO") -> None:
        """An event of your own."""
        self._put(GenericEvent, "GENERIC_EVENT", severity, event_name=event_name, event_data=event_data or {})

    def log_exception(self, error: BaseException, *, fatal: bool = False) -> None:
        """An exception that left a client method; ``fatal`` ends the session as well."""
        user_fault = isinstance(error, RequestFailedError) and error.category == "user"
        self._put(
            UnhandledExceptionEvent,
            "UNHANDLED_EXCEPTION",
            "WARNING" if user_fault else "ERROR",
            error_type=type(error).__name__,
            error_message=str(error),
            traceback="".join(traceback.format_exception(error)),
        )
        if fatal:
            seconds = time.monotonic() - self._started
            self._put(SessionEndEvent, "SESSION_END", "INFO", duration=f"{seconds:.3f}s")

    def _put(self, kind: Any, event: str, severity: Severity, **fields: Any) -> None:
        if not telemetry_enabled():
            return
        self._queue.append(
            kind(
                event=event,
                event_id=str(uuid.uuid4()),
                event_session_index=self._count,
                severity=severity,
                timestamp=datetime.now(UTC),
                **fields,
            )
        )
        self._count += 1

    async def flush(self) -> None:
        """Send what is queued; a batch that fails is dropped."""
        async with self._lock:
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), _BATCH_LIMIT))]
                request = TelemetrySendRequest(
                    events=batch,
                    platform=platform.system(),
                    sdk_version=__version__,
                    session_id=self._session_id,
                    process_uuid=PROCESS_UUID,
                )
                try:
                    await self._send(Call("POST", "telemetry", request, timeout=_TIMEOUT_SECONDS, retries=0))
                except TinkerError as error:
                    logger.info("telemetry was dropped: %s", error)
                    return
