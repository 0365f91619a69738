"""Chrome/Perfetto trace events, and the file that they are written to while the program runs."""

from __future__ import annotations

import argparse
import json
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class EventType(StrEnum):
    """The ``ph`` of an event."""

    BEGIN = "B"
    END = "E"
    METADATA = "M"


@dataclass
class TraceEvent:
    """One event. ``ts`` is in microseconds; ``tid`` names the row that it is drawn in."""

    name: str
    ph: EventType
    pid: int
    tid: int
    ts: float
    args: dict[str, Any] = field(default_factory=dict)
    cat: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        row = {
            "name": self.name,
            "ph": self.ph.value,
            "pid": self.pid,
            "tid": self.tid,
            "ts": self.ts,
            "args": self.args,
        }
        return row if self.cat is None else {**row, "cat": self.cat}


class TraceCollector:
    """Appends events to a JSONL file from a thread of its own, every ``flush_interval_sec``."""

    def __init__(self, flush_interval_sec: float = 1.0, output_file: str | Path = "trace_events.jsonl") -> None:
        self._interval = flush_interval_sec
        self._path = Path(output_file)
        self._queue: queue.SimpleQueue[TraceEvent] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._path.touch()
        self._thread = threading.Thread(target=self._work, name="trace-events", daemon=True)
        self._thread.start()

    def add_event(self, event: TraceEvent) -> None:
        """Write an event soon."""
        self._queue.put(event)

    def get_timestamp(self) -> float:
        """Now, in microseconds of the clock that all events use."""
        return time.perf_counter() * 1e6

    def get_all_events_immediately_available(self) -> list[TraceEvent]:
        """Take out the events that are not written yet."""
        events = []
        while True:
            try:
                events.append(self._queue.get_nowait())
            except queue.Empty:
                return events

    def shutdown(self) -> None:
        """Write what is left and stop."""
        self._stopped.set()
        self._thread.join()
        self._write(self.get_all_events_immediately_available())

    def _work(self) -> None:
        while not self._stopped.wait(self._interval):
            self._write(self.get_all_events_immediately_available())

    def _write(self, events: Iterable[TraceEvent]) -> None:
        lines = "".join(json.dumps(event.to_dict(), default=str) + "\n" for event in events)
        if lines:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(lines)


def convert_jsonl_to_json_main() -> None:
    """Command line: turn a file of events into the one JSON list that viewers of traces read."""
    parser = argparse.ArgumentParser(description="JSONL of trace events to a JSON file for Perfetto")
    parser.add_argument("trace_events_jsonl_file")
    parser.add_argument("output_json_file")
    named = parser.parse_args()
    lines = Path(named.trace_events_jsonl_file).read_text(encoding="utf-8").split("\n")
    events = [json.loads(line) for line in lines if line.strip()]
    Path(named.output_json_file).write_text(json.dumps(events), encoding="utf-8")
    print(f"{len(events)} events in {named.output_json_file}; open it at https://ui.perfetto.dev or chrome://tracing")
