"""Telemetry events."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from .base import Request, Response

EventType = Literal["SESSION_START", "SESSION_END", "UNHANDLED_EXCEPTION", "GENERIC_EVENT"]
Severity = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class _Event(Response):
    event: EventType
    event_id: str
    event_session_index: int
    severity: Severity
    timestamp: datetime


class SessionStartEvent(_Event):
    pass


class SessionEndEvent(_Event):
    duration: str


class UnhandledExceptionEvent(_Event):
    error_message: str
    error_type: str
    traceback: str | None = None


class GenericEvent(_Event):
    event_name: str
    event_data: dict[str, Any] = {}


TelemetryEvent = SessionStartEvent | SessionEndEvent | UnhandledExceptionEvent | GenericEvent


class TelemetryBatch(Response):
    events: list[TelemetryEvent]
    platform: str
    sdk_version: str
    session_id: str
    process_uuid: str


class TelemetrySendRequest(Request):
    events: list[TelemetryEvent]
    platform: str
    sdk_version: str
    session_id: str
    process_uuid: str


class TelemetryResponse(Response):
    status: Literal["accepted"]
