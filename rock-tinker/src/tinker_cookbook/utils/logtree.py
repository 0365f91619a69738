"""A report as a tree: nested scopes become one HTML page and one JSON tree.

``init_trace`` opens a report; ``scope_header``, ``log_text`` and friends write to wherever the running task stands in
it. Outside a report (or in ``scope_disable``) every call is a cheap no-op, so that library code may log freely.
"""

from __future__ import annotations

import contextvars
import functools
import html as html_module
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_CSS = """
body{font:14px/1.45 system-ui,sans-serif;max-width:70rem;margin:1rem auto;padding:0 1rem;color:#222}
section{border-left:2px solid #ddd;padding-left:.8rem;margin:.4rem 0}
h1,h2,h3,h4,h5,h6{margin:.5rem 0 .2rem}pre,.text{white-space:pre-wrap;overflow-wrap:anywhere}
pre{background:#f6f6f6;padding:.4rem}table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.1rem .5rem}
details{margin:.3rem 0}
"""


class Formatter(Protocol):
    """An object that draws itself in a report."""

    def to_html(self) -> str:
        """HTML fragment."""
        ...

    def to_data(self) -> dict[str, Any]:
        """JSON form."""
        ...

    def get_css(self) -> str:
        """Style rules that the fragment needs."""
        ...


@dataclass
class Node:
    """Element of the tree: an HTML tag with attributes and children (nodes or raw HTML), and its JSON data."""

    tag: str
    attrs: dict[str, str] = field(default_factory=dict)
    children: list[Node | str] = field(default_factory=list)
    data: dict[str, Any] | None = None

    def to_html(self) -> str:
        """HTML of the subtree."""
        attrs = "".join(f' {key}="{html_module.escape(str(value))}"' for key, value in self.attrs.items())
        inner = "".join(child if isinstance(child, str) else child.to_html() for child in self.children)
        return f"<{self.tag}{attrs}>{inner}</{self.tag}>\n"

    def to_dict(self) -> dict[str, Any]:
        """JSON form of the subtree; raw HTML is left out where data says the same."""
        row: dict[str, Any] = {"tag": self.tag}
        if self.attrs:
            row["attrs"] = self.attrs
        if self.data is not None:
            row["data"] = self.data
        children = [c if isinstance(c, str) else c.to_dict() for c in self.children if self.data is None or c]
        if children and self.data is None:
            row["children"] = children
        return row


@dataclass
class Trace:
    """A report under construction."""

    title: str
    path: Path | None
    root: Node = field(default_factory=lambda: Node("main"))
    css: set[str] = field(default_factory=set)
    started: float = field(default_factory=time.time)

    def body_html(self) -> str:
        """HTML of the tree."""
        return self.root.to_html()

    def get_html(self) -> str:
        """The whole page."""
        head = f"<meta charset='utf-8'><title>{html_module.escape(self.title)}</title><style>{_CSS}{''.join(self.css)}</style>"
        return f"<!doctype html><html><head>{head}</head><body><h1>{html_module.escape(self.title)}</h1>{self.body_html()}</body></html>"

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"title": self.title, "started_at": self.started, "root": self.root.to_dict()}


@dataclass(frozen=True)
class _Position:
    trace: Trace
    node: Node
    depth: int


_position: contextvars.ContextVar[_Position | None] = contextvars.ContextVar("logtree_position", default=None)


@contextmanager
def init_trace(title: str, path: str | Path | None = None, *, write_on_error: bool = True) -> Iterator[Trace]:
    """Open a report and write it to ``path`` (HTML) and, beside it, ``<stem>_logtree.json`` when the block ends."""
    trace = Trace(title, Path(path) if path is not None else None)
    token = _position.set(_Position(trace, trace.root, 1))
    failed = False
    try:
        yield trace
    except BaseException:
        failed = True
        raise
    finally:
        _position.reset(token)
        if trace.path is not None and (write_on_error or not failed):
            _write(trace)


def _write(trace: Trace) -> None:
    assert trace.path is not None
    trace.path.parent.mkdir(parents=True, exist_ok=True)
    trace.path.write_text(trace.get_html(), encoding="utf-8")
    write_trace_json(trace, trace.path.with_name(f"{trace.path.stem}_logtree.json"))


def write_trace_json(trace: Trace, path: str | Path) -> None:
    """Write the JSON form of a report."""
    Path(path).write_text(json.dumps(trace.to_dict(), ensure_ascii=False, default=str), encoding="utf-8")


def write_html_with_default_style(body_html: str, path: str | Path, *, title: str = "Report", lang: str = "en") -> None:
    """Write an HTML fragment as a page of its own."""
    head = f"<meta charset='utf-8'><title>{html_module.escape(title)}</title><style>{_CSS}</style>"
    page = f"<!doctype html><html lang='{lang}'><head>{head}</head><body>{body_html}</body></html>"
    Path(path).write_text(page, encoding="utf-8")


def flush_trace() -> None:
    """Write the open report as it stands."""
    here = _position.get()
    if here is not None and here.trace.path is not None:
        _write(here.trace)


@contextmanager
def _inside(node: Node, deeper: bool = True) -> Iterator[None]:
    here = _position.get()
    if here is None:
        yield
        return
    here.node.children.append(node)
    token = _position.set(_Position(here.trace, node, here.depth + deeper))
    try:
        yield
    finally:
        _position.reset(token)


@contextmanager
def scope_header(title: str, **attrs: str) -> Iterator[None]:
    """A section with a heading; everything logged inside belongs to it."""
    here = _position.get()
    level = min(here.depth + 1, 6) if here else 2
    node = Node("section", dict(attrs), [Node(f"h{level}", {}, [html_module.escape(title)])])
    with _inside(node):
        yield


@contextmanager
def scope_div(**attrs: str) -> Iterator[None]:
    """A plain block."""
    with _inside(Node("div", dict(attrs)), deeper=False):
        yield


@contextmanager
def scope_details(summary: str) -> Iterator[None]:
    """A block that is folded at first."""
    with _inside(Node("details", {}, [Node("summary", {}, [html_module.escape(summary)])])):
        yield


@contextmanager
def scope_disable() -> Iterator[None]:
    """Nothing logged inside appears."""
    token = _position.set(None)
    try:
        yield
    finally:
        _position.reset(token)


@contextmanager
def optional_enable_logging(enable: bool) -> Iterator[None]:
    """Log inside only if asked to."""
    if enable:
        yield
    else:
        with scope_disable():
            yield


def scope_header_decorator(title: str) -> Callable[[F], F]:
    """Run a function or coroutine function inside ``scope_header(title)``."""

    def decorate(function: F) -> F:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
                with scope_header(title):
                    return await function(*args, **kwargs)

            return async_wrapper  # type: ignore[return-value]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with scope_header(title):
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


def _add(node: Node) -> None:
    here = _position.get()
    if here is not None:
        here.node.children.append(node)


def log_text(text: str, *, div_class: str = "text") -> None:
    """A paragraph."""
    _add(Node("div", {"class": div_class}, [html_module.escape(text)]))


def log_html(html: str, *, div_class: str | None = None) -> None:
    """Raw HTML."""
    _add(Node("div", {"class": div_class} if div_class else {}, [html]))


def log_formatter(formatter: Formatter) -> None:
    """Anything that draws itself."""
    here = _position.get()
    if here is not None:
        here.trace.css.add(formatter.get_css())
        _add(Node("div", {}, [formatter.to_html()], data=formatter.to_data()))


def details(text: str, *, summary: str = "details", pre: bool = True) -> None:
    """Folded text."""
    body = Node("pre" if pre else "div", {}, [html_module.escape(text)])
    _add(Node("details", {}, [Node("summary", {}, [html_module.escape(summary)]), body]))


def header(text: str, *, level: int = 3) -> None:
    """A heading without a section."""
    _add(Node(f"h{level}", {}, [html_module.escape(text)]))


def table(obj: Sequence[Mapping[str, Any]], *, caption: str | None = None) -> None:
    """Rows of dicts as a table."""
    columns = list(dict.fromkeys(key for row in obj for key in row))
    head = Node("tr", {}, [Node("th", {}, [html_module.escape(column)]) for column in columns])
    body = [Node("tr", {}, [Node("td", {}, [_cell(row.get(column, ""))]) for column in columns]) for row in obj]
    title: list[Node | str] = [Node("caption", {}, [html_module.escape(caption)])] if caption else []
    _add(Node("table", {}, [*title, head, *body]))


def table_from_dict(
    data: Mapping[str, Any],
    *,
    caption: str | None = None,
    key_header: str = "key",
    value_header: str = "value",
    sort_by: str | None = None,
) -> None:
    """A dict as a table with two columns; ``sort_by``: "key" or "value"."""
    rows = [{key_header: key, value_header: value} for key, value in data.items()]
    if sort_by:
        column = key_header if sort_by == "key" else value_header
        rows.sort(key=lambda row: row[column])
    table(rows, caption=caption)


def table_from_dict_of_lists(
    columns: Mapping[str, Sequence[Any]], *, caption: str | None = None, order: Sequence[str] | None = None
) -> None:
    """Columns of one length as a table."""
    names = list(order or columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*(columns[n] for n in names), strict=True)]
    table(rows, caption=caption)


def _cell(value: Any) -> str:
    return html_module.escape(f"{value:.4g}" if isinstance(value, float) else str(value))
