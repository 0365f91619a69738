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
import os
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class SpanRecord:
    """One span; times in seconds of the monotonic clock and of the wall clock."""

    name: str
    start_time: float
    end_time: float
    wall_start: float
    wall_end: float


@dataclass
class ScopeContext:
    """Attributes of the innermost span, written to its trace event."""

    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass
class IterationWindow:
    """Spans of one iteration."""

    start: float = field(default_factory=time.perf_counter)
    spans: list[SpanRecord] = field(default_factory=list)

    def record_span(self, span: SpanRecord) -> None:
        """Add a span."""
        self.spans.append(span)

    def merge_spans(self, spans: list[SpanRecord]) -> None:
        """Add spans that another worker recorded."""
        self.spans.extend(spans)

    def get_span_records(self) -> list[SpanRecord]:
        """All spans so far."""
        return list(self.spans)

    def get_span_dicts(self) -> list[dict[str, Any]]:
        """All spans so far as dicts."""
        return [asdict(span) for span in self.spans]

    def aggregate(self) -> dict[str, list[float]]:
        """Durations by span name."""
        durations: dict[str, list[float]] = defaultdict(list)
        for span in self.spans:
            durations[span.name].append(span.end_time - span.start_time)
        return durations

    def get_timing_metrics(self) -> dict[str, float]:
        """``time/<span>`` for a span that came once, else ``time/<span>:{total,count,mean,max}``; and ``time/total``."""
        metrics = {"time/total": time.perf_counter() - self.start}
        for name, found in self.aggregate().items():
            if len(found) == 1:
                metrics[f"time/{name}"] = found[0]
                continue
            metrics[f"time/{name}:total"] = sum(found)
            metrics[f"time/{name}:count"] = float(len(found))
            metrics[f"time/{name}:mean"] = sum(found) / len(found)
            metrics[f"time/{name}:max"] = max(found)
        return metrics

    def write_spans_jsonl(self, path: str | Path, step: int) -> None:
        """Append the spans to a JSONL file."""
        with open(path, "a", encoding="utf-8") as file:
            for row in self.get_span_dicts():
                file.write(json.dumps({"step": step, **row}) + "\n")


class _Collector:
    """Writes trace events to a JSONL file."""

    def __init__(self, path: str | Path) -> None:
        self._file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115
        self._lock = threading.Lock()

    def event(self, name: str, start: float, duration: float, attributes: dict[str, Any]) -> None:
        row = {
            "name": name,
            "ph": "X",
            "ts": start * 1e6,
            "dur": duration * 1e6,
            "pid": os.getpid(),
            "tid": _track(),
            "args": attributes,
        }
        with self._lock:
            self._file.write(json.dumps(row, default=str) + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


_window: contextvars.ContextVar[IterationWindow | None] = contextvars.ContextVar("iteration_window", default=None)
_scope: contextvars.ContextVar[ScopeContext | None] = contextvars.ContextVar("scope_context", default=None)
_collector: _Collector | None = None


def _track() -> int:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return id(task) % 100_000 if task is not None else threading.get_ident() % 100_000


def trace_init(flush_interval_sec: float = 1.0, output_file: str | Path = "trace_events.jsonl") -> None:
    """Write every span from now on to a file of trace events (open it in Perfetto)."""
    global _collector
    trace_shutdown()
    _collector = _Collector(output_file)


def trace_shutdown() -> None:
    """Close the file of trace events."""
    global _collector
    if _collector is not None:
        _collector.close()
        _collector = None


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
    context = ScopeContext()
    token = _scope.set(context)
    start, wall = time.perf_counter(), time.time()
    try:
        yield context
    finally:
        _scope.reset(token)
        end, wall_end = time.perf_counter(), time.time()
        window = _window.get()
        if window is not None:
            window.record_span(SpanRecord(name, start, end, wall, wall_end))
        if _collector is not None:
            _collector.event(name, wall, wall_end - wall, context.attributes)


@asynccontextmanager
async def scope_span(name: str) -> AsyncIterator[ScopeContext]:
    """Record the block as a span."""
    with scope_span_sync(name) as context:
        yield context


def scope(func: F) -> F:
    """Record every call of a function or coroutine function as a span of its name."""
    name = func.__name__
    if inspect.iscoroutinefunction(func):

        @functools.wraps(func)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            with scope_span_sync(name):
                return await func(*args, **kwargs)

        return async_wrapper  # type: ignore[return-value]

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with scope_span_sync(name):
            return func(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


@contextmanager
def trace_iteration(step: int) -> Iterator[IterationWindow]:
    """Window of one iteration; tasks started inside record into it too."""
    window = IterationWindow()
    token = _window.set(window)
    try:
        yield window
    finally:
        _window.reset(token)


def save_gantt_chart_html(window: IterationWindow, step: int, path: str | Path) -> None:
    """Write the spans of an iteration as a chart: one row per span, without any script."""
    spans = sorted(window.spans, key=lambda span: span.start_time)
    total = max((span.end_time for span in spans), default=window.start) - window.start or 1.0
    rows = []
    for span in spans:
        left = 100 * (span.start_time - window.start) / total
        width = max(100 * (span.end_time - span.start_time) / total, 0.1)
        label = f"{html.escape(span.name)} {span.end_time - span.start_time:.3f} s"
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
