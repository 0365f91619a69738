"""Times as they go to clients: ISO 8601 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(seconds: float) -> str:
    """Seconds since the epoch as text."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()
