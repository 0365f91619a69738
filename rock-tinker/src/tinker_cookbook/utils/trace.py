"""Spans: what a training iteration spends its time on.

``trace_iteration`` opens a window; ``scope`` (decorator), ``scope_span`` and ``scope_span_sync`` record spans in it.
Optionally every span is also written as a Chrome/Perfetto trace event (``trace_init``).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import html
import inspect
import json
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tinker_cookbook.utils.trace_events import EventType, TraceCollector, TraceEvent, convert_jsonl_to_json_main

if TYPE_CHECKING:
    from tinker_cookbook.stores.training_store import TrainingRunStore

__all__ = [
    "EventType",
    "IterationWindow",
    "ScopeContext",
    "SpanRecord",
    "TraceCollector",
    "TraceEvent",
    "convert_jsonl_to_json_main",
    "get_scope_context",
    "save_gantt_chart_html",
    "scope",
    "scope_span",
    "scope_span_sync",
    "trace_init",
    "trace_iteration",
    "trace_shutdown",
    "update_scope_context",
]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class SpanRecord:
    """One span; times in seconds. ``wall_start`` and ``wall_end`` place it among the spans of other workers."""

    name: str
    start_time: float
    end_time: float
    wall_start: float
    wall_end: float


@dataclass
class ScopeContext:
    """Attributes of the innermost span, written to its trace event."""

    attributes: dict[str, Any] = field(default_factory=dict)


class IterationWindow:
    """Spans of one iteration."""

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []
        self._total_time: float | None = None

    def record_span(self, name: str, start_time: float, end_time: float) -> None:
        """Add a span, in seconds of ``time.perf_counter``."""
        self.spans.append(SpanRecord(name, start_time, end_time, start_time, end_time))

    def merge_spans(self, spans: Iterable[SpanRecord]) -> None:
        """Add spans that another worker recorded."""
        self.spans.extend(spans)

    def finish(self, seconds: float) -> None:
        """The iteration took this long."""
        self._total_time = seconds

    def _first(self) -> float:
        return min((span.wall_start for span in self.spans), default=0.0)

    def get_span_records(self) -> list[dict[str, Any]]:
        """Spans as rows of a timeline: ``task``, ``start`` and ``end``; the first one starts at midnight."""
        midnight, first = datetime(2000, 1, 1), self._first()
        return [
            {
                "task": span.name,
                "start": midnight + timedelta(seconds=span.wall_start - first),
                "end": midnight + timedelta(seconds=span.wall_end - first),
            }
            for span in self.spans
        ]

    def get_span_dicts(self) -> list[dict[str, Any]]:
        """Spans in JSON form, with their seconds since the first one started."""
        first = self._first()
        return [
            {
                "name": span.name,
                "duration": span.end_time - span.start_time,
                "wall_start": span.wall_start - first,
                "wall_end": span.wall_end - first,
            }
            for span in self.spans
        ]

    def aggregate(self) -> dict[str, float]:
        """``time/<span>`` for a span that came once, else ``time/<span>:{total,count,mean,max}``."""
        durations: dict[str, list[float]] = defaultdict(list)
        for span in self.spans:
            durations[span.name].append(span.end_time - span.start_time)
        metrics: dict[str, float] = {}
        for name, found in durations.items():
            if len(found) == 1:
                metrics[f"time/{name}"] = found[0]
                continue
            metrics[f"time/{name}:total"] = sum(found)
            metrics[f"time/{name}:count"] = len(found)
            metrics[f"time/{name}:mean"] = sum(found) / len(found)
            metrics[f"time/{name}:max"] = max(found)
        return metrics

    def get_timing_metrics(self) -> dict[str, float]:
        """``aggregate`` and, once the iteration is over, ``time/total``."""
        return self.aggregate() if self._total_time is None else {**self.aggregate(), "time/total": self._total_time}

    def write_spans_jsonl(self, path: str | Path, step: int) -> None:
        """Append the spans, if there are any, to a JSONL file as one line."""
        if not self.spans:
            return
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "spans": self.get_span_dicts()}) + "\n")

    def save_timing(self, step: int, *, store: TrainingRunStore) -> None:
        """Append the spans to the files of a run."""
        store.write_timing_spans(step, self.get_span_dicts())


_window: contextvars.ContextVar[IterationWindow | None] = contextvars.ContextVar("iteration_window", default=None)
_scope: contextvars.ContextVar[ScopeContext | None] = contextvars.ContextVar("scope_context", default=None)
_collector: TraceCollector | None = None
_threads: dict[str, int] = {}
_rows: dict[str, int] = {}


def trace_init(flush_interval_sec: float = 1.0, output_file: str | Path = "trace_events.jsonl") -> None:
    """Write every span from now on to a file of trace events (open it in Perfetto)."""
    global _collector
    trace_shutdown()
    _threads.clear()
    _rows.clear()
    _collector = TraceCollector(flush_interval_sec, output_file)


def trace_shutdown() -> None:
    """Write what is left and close the file of trace events."""
    global _collector
    if _collector is not None:
        _collector.shutdown()
        _collector = None


def _row_name() -> str:
    """Spans of one task, or of one thread outside tasks, are drawn in one row."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task.get_name() if task is not None else f"sync:{threading.current_thread().name}"


def _number(known: dict[str, int], name: str, naming: Callable[[int], TraceEvent], collector: TraceCollector) -> int:
    """Number of a name; the event that tells it to the viewer is written once."""
    if name not in known:
        known[name] = len(known)
        collector.add_event(naming(known[name]))
    return known[name]


def _event(collector: TraceCollector, name: str, kind: EventType, row: str, attributes: dict[str, Any]) -> None:
    """Begin or end of a span; a thread is drawn as a process and a row as a thread of it."""

    def thread_event(number: int) -> TraceEvent:
        return TraceEvent("process_name", EventType.METADATA, number, 0, 0, {"name": f"{thread} Thread"})

    def row_event(number: int) -> TraceEvent:
        return TraceEvent("thread_name", EventType.METADATA, pid, number, 0, {"name": row})

    thread = threading.current_thread().name
    pid = _number(_threads, thread, thread_event, collector)
    tid = _number(_rows, row, row_event, collector)
    args = {"track": row, "thread": thread, **attributes}
    collector.add_event(TraceEvent(name, kind, pid, tid, collector.get_timestamp(), args, "async"))


def get_scope_context() -> ScopeContext:
    """Context of the innermost span (a fresh one outside any span)."""
    return _scope.get() or ScopeContext()


def update_scope_context(values: dict[str, Any]) -> None:
    """Attach attributes to the innermost span."""
    context = _scope.get()
    if context is not None:
        context.attributes.update(values)


@contextmanager
def scope_span_sync(name: str) -> Iterator[ScopeContext]:
    """Record the block as a span."""
    context, collector = ScopeContext(), _collector
    row = _row_name() if collector is not None else ""
    token = _scope.set(context)
    if collector is not None:
        _event(collector, name, EventType.BEGIN, row, {})
    start = time.perf_counter()
    try:
        yield context
    finally:
        end = time.perf_counter()
        _scope.reset(token)
        window = _window.get()
        if window is not None:
            window.record_span(name, start, end)
        if collector is not None:
            _event(collector, name, EventType.END, row, context.attributes)


@asynccontextmanager
async def scope_span(name: str) -> AsyncIterator[ScopeContext]:
    """Record the block as a span."""
    with scope_span_sync(name) as context:
        yield context


def scope(func: F) -> F:
    """Record every call of a function or coroutine function as a span of its name, once if it is decorated twice."""
    if getattr(func, "_is_scope", False):
        return func
    name = func.__name__
    if inspect.iscoroutinefunction(func):

        @functools.wraps(func)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            with scope_span_sync(name):
                return await func(*args, **kwargs)

        async_wrapper._is_scope = True  # type: ignore[attr-defined]
        return async_wrapper  # type: ignore[return-value]

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with scope_span_sync(name):
            return func(*args, **kwargs)

    wrapper._is_scope = True  # type: ignore[attr-defined]
    return wrapper  # type: ignore[return-value]


@contextmanager
def trace_iteration(step: int) -> Iterator[IterationWindow]:
    """Window of one iteration; tasks started inside record into it too."""
    window, start = IterationWindow(), time.perf_counter()
    token = _window.set(window)
    try:
        yield window
    finally:
        _window.reset(token)
        window.finish(time.perf_counter() - start)


def save_gantt_chart_html(window: IterationWindow, step: int, path: str | Path) -> None:
    """Write the spans of an iteration as a chart: one row per span, without any script."""
    spans = sorted(window.get_span_dicts(), key=lambda span: span["wall_start"])
    total = max((span["wall_end"] for span in spans), default=0.0) or 1.0
    rows = []
    for span in spans:
        left, width = 100 * span["wall_start"] / total, max(100 * span["duration"] / total, 0.1)
        label = f"{html.escape(span['name'])} {span['duration']:.3f} s"
        rows.append(
            f'<div class="row"><div class="bar" style="left:{left:.2f}%;width:{width:.2f}%" title="{label}"></div>'
            f"<span>{label}</span></div>"
        )
    Path(path).write_text(
        f"<!doctype html><meta charset='utf-8'><title>step {step}</title><style>body{{font:12px sans-serif}}"
        ".row{position:relative;height:16px;margin:1px 0}.bar{position:absolute;height:14px;background:#7aa6da}"
        f".row span{{position:absolute;left:4px}}</style><h1>Step {step}: {total:.2f} s</h1>" + "\n".join(rows),
        encoding="utf-8",
    )
