"""Trajectory file: one JSON line for each request, answer and end, written when it happens."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """Appends events to a JSON-lines file.

    A line is one ``write`` call on a descriptor in append mode, so a reader (or a crash) never sees half an event between two
    whole ones, and an interrupted session keeps all that it had.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **fields: Any) -> None:
        """Adds one event, stamped with Unix time in seconds."""
        line = (
            json.dumps({"type": event, "at": round(time.time(), 6), **fields}, separators=(",", ":")).encode() + b"\n"
        )
        written = os.write(self._descriptor, line)
        while written < len(line):  # only a full disk or a signal splits a write to a regular file
            written += os.write(self._descriptor, line[written:])

    def close(self) -> None:
        os.close(self._descriptor)


def read_journal(path: Path) -> list[dict[str, Any]]:
    """All complete events of a trajectory file. A last line without its end (a crash) is left out."""
    events = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        if line.strip():
            events.append(json.loads(line))
    return events
