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
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tinker_cookbook.utils import logtree_style
from tinker_cookbook.utils.logtree_style import Theme

F = TypeVar("F", bound=Callable[..., Any])


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

    def to_html(self, indent: int = 0) -> str:
        """HTML of the subtree, ``indent`` levels deep. An element of text alone stays on one line."""
        space = "  " * indent
        attrs = "".join(f' {key}="{html_module.escape(str(value))}"' for key, value in self.attrs.items())
        if all(isinstance(child, str) for child in self.children):
            inner = "".join(str(child) for child in self.children)
        else:
            parts = (
                f"{space}  {child}\n" if isinstance(child, str) else child.to_html(indent + 1)
                for child in self.children
            )
            inner = f"\n{''.join(parts)}{space}"
        return f"{space}<{self.tag}{attrs}>{inner}</{self.tag}>\n"

    def to_dict(self) -> dict[str, Any]:
        """JSON form of the subtree; an element with data has no children in it, since the data say the same."""
        row: dict[str, Any] = {"tag": self.tag, "attrs": self.attrs, "children": []}
        if self.data is not None:
            return {**row, "data": self.data}
        row["children"] = [child if isinstance(child, str) else child.to_dict() for child in self.children]
        return row


class Trace:
    """A report under construction."""

    def __init__(self, title: str, path: str | Path | None, write_on_error: bool) -> None:
        self.title = title
        self.path = None if path is None else Path(path)
        self.write_on_error = write_on_error
        self.started_at = datetime.now()
        self.root = Node("body", {"class": "lt-root"})
        self._formatter_css: dict[str, None] = {}

    def body_html(self, wrap_body: bool = True) -> str:
        """HTML of the tree, with or without the body tags."""
        if wrap_body:
            return self.root.to_html()
        return "".join(c if isinstance(c, str) else c.to_html(1) for c in self.root.children)

    def head_html(self, theme: Theme | None = None, title: str | None = None, extra_head: str | None = None) -> str:
        """What belongs between the head tags of its page."""
        css = "".join(f"{rules}\n" for rules in self._formatter_css)
        return logtree_style.head(title or self.title, theme, extra_head, css)

    def get_html(self) -> str:
        """The whole page."""
        return logtree_style.page(self.head_html(), self.body_html())

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        path = None if self.path is None else str(self.path)
        start = self.started_at.isoformat()
        return {"title": self.title, "started_at": start, "path": path, "root": self.root.to_dict()}


@dataclass(frozen=True)
class _Position:
    trace: Trace
    node: Node
    depth: int


_position: contextvars.ContextVar[_Position | None] = contextvars.ContextVar("logtree_position", default=None)


@contextmanager
def init_trace(title: str, path: str | Path | None = None, *, write_on_error: bool = True) -> Iterator[Trace]:
    """Open a report and write it to ``path`` (HTML) and, beside it, ``<stem>_logtree.json`` when the block ends.

    An exception is shown in the report, unless ``write_on_error`` is false: then nothing is written.
    """
    trace = Trace(title, path, write_on_error)
    written = f"Generated {trace.started_at.isoformat(timespec='seconds')}"
    trace.root.children += [_text("h1", "lt-title", title), _text("div", "lt-subtitle", written)]
    token = _position.set(_Position(trace, trace.root, 1))
    try:
        yield trace
    except BaseException as error:
        if write_on_error:
            trace.root.children.append(_exception(error))
            _write(trace)
        raise
    else:
        _write(trace)
    finally:
        _position.reset(token)


def _text(tag: str, css_class: str | None, text: str) -> Node:
    return Node(tag, {"class": css_class} if css_class else {}, [html_module.escape(text)])


def _exception(error: BaseException) -> Node:
    summary = _text("summary", None, f"Exception: {type(error).__name__}: {error}")
    text = _text("pre", None, "".join(traceback.format_exception(error)))
    return Node("details", {"class": "lt-exc", "open": "open"}, [summary, text])


def _write(trace: Trace) -> None:
    if trace.path is None:
        return
    trace.path.parent.mkdir(parents=True, exist_ok=True)
    trace.path.write_text(trace.get_html(), encoding="utf-8")
    write_trace_json(trace, trace.path.with_name(f"{trace.path.stem}_logtree.json"))


def write_trace_json(trace: Trace, path: str | Path) -> None:
    """Write the JSON form of a report."""
    Path(path).write_text(json.dumps(trace.to_dict(), ensure_ascii=False, default=str), encoding="utf-8")


def write_html_with_default_style(
    body_html: str,
    path: str | Path,
    *,
    title: str = "Trace",
    theme: Theme | None = None,
    lang: str = "en",
    extra_head: str | None = None,
) -> None:
    """Write an HTML fragment as a page of its own."""
    text = logtree_style.page(logtree_style.head(title, theme, extra_head), body_html, lang)
    Path(path).write_text(text, encoding="utf-8")


def jinja_context(trace: Trace, **extra: Any) -> dict[str, Any]:
    """Values for a template that draws a report: title, times, ``head_html`` and ``body_html``, and what is given."""
    return {
        "title": trace.title,
        "generated_at": datetime.now().isoformat(),
        "started_at": trace.started_at.isoformat(),
        "body_html": trace.body_html(),
        "head_html": trace.head_html(),
        **extra,
    }


def render_with_jinja(
    env: Any, template_name: str, *, context: Mapping[str, Any], write_to: str | Path | None = None
) -> str:
    """Draw a template of a Jinja environment, and write it to a file if one is given."""
    text = str(env.get_template(template_name).render(**context))
    if write_to is not None:
        Path(write_to).write_text(text, encoding="utf-8")
    return text


def flush_trace() -> bool:
    """Write the open report as it stands. Returns whether there is one with a file."""
    here = _position.get()
    if here is None or here.trace.path is None:
        return False
    _write(here.trace)
    return True


@contextmanager
def _moved_to(position: _Position | None) -> Iterator[None]:
    token = _position.set(position)
    try:
        yield
    finally:
        _position.reset(token)


def _attrs(given: Mapping[str, Any], **defaults: str) -> dict[str, str]:
    """Attributes by their HTML names: ``class_`` is ``class``."""
    return {**defaults, **{key.rstrip("_"): str(value) for key, value in given.items()}}


@contextmanager
def scope_header(title: str, **attrs: Any) -> Iterator[None]:
    """A section with a heading; everything logged inside belongs to it."""
    here = _position.get()
    if here is None:
        yield
        return
    level = min(here.depth + 1, 6)
    body = Node("div", {"class": "lt-section-body"})
    here.node.children.append(
        Node("section", _attrs(attrs, **{"class": "lt-section"}), [_text(f"h{level}", f"lt-h{level}", title), body])
    )
    with _moved_to(_Position(here.trace, body, here.depth + 1)):
        yield


@contextmanager
def scope_div(**attrs: Any) -> Iterator[None]:
    """A plain block."""
    here = _position.get()
    if here is None:
        yield
        return
    node = Node("div", _attrs(attrs))
    here.node.children.append(node)
    with _moved_to(_Position(here.trace, node, here.depth)):
        yield


@contextmanager
def scope_details(summary: str) -> Iterator[None]:
    """A block that is folded at first."""
    here = _position.get()
    if here is None:
        yield
        return
    body = Node("div", {"class": "lt-details-body"})
    here.node.children.append(Node("details", {"class": "lt-details"}, [_text("summary", None, summary), body]))
    with _moved_to(_Position(here.trace, body, here.depth)):
        yield


@contextmanager
def scope_disable() -> Iterator[None]:
    """Nothing logged inside appears."""
    with _moved_to(None):
        yield


@contextmanager
def optional_enable_logging(enable: bool) -> Iterator[None]:
    """Log inside only if asked to."""
    if enable:
        yield
    else:
        with scope_disable():
            yield


def scope_header_decorator(title: str | Callable[..., Any]) -> Any:
    """Run a function or coroutine function inside a section: ``@scope_header_decorator("Title")``, or without
    parentheses for a section with the function's name."""
    if not isinstance(title, str):
        return scope_header_decorator(title.__name__)(title)

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


def _add(*nodes: Node) -> None:
    here = _position.get()
    if here is not None:
        here.node.children.extend(nodes)


def log_text(text: str, *, div_class: str | None = None) -> None:
    """A paragraph, or a block of a class."""
    _add(_text("div", div_class, text) if div_class else _text("p", "lt-p", text))


def log_html(html: str, *, div_class: str | None = None) -> None:
    """Raw HTML."""
    _add(Node("div", {"class": div_class} if div_class else {}, [html]))


def log_formatter(formatter: Formatter) -> None:
    """Anything that draws itself; ``to_data`` may be missing."""
    here = _position.get()
    if here is not None:
        here.trace._formatter_css[formatter.get_css()] = None
        to_data = getattr(formatter, "to_data", None)
        _add(Node("div", {}, [formatter.to_html()], data=to_data() if to_data else None))


def details(text: str, *, summary: str = "Details", pre: bool = True) -> None:
    """Folded text."""
    body = _text("pre" if pre else "div", "lt-details-body", text)
    _add(Node("details", {"class": "lt-details"}, [_text("summary", None, summary), body]))


def header(text: str, *, level: int | None = None) -> None:
    """A heading without a section, by default of the level that a section here would have."""
    here = _position.get()
    if here is not None:
        level = level or min(here.depth + 1, 6)
        _add(_text(f"h{level}", f"lt-h{level}", text))


def table(obj: Any, *, caption: str | None = None) -> None:
    """Rows of dicts, or a data frame of pandas, as a table.

    Raises:
        TypeError: ``obj`` is something else.
    """
    if hasattr(obj, "to_dict"):
        obj = obj.to_dict("records")
    if isinstance(obj, str) or not isinstance(obj, Sequence) or not all(isinstance(row, Mapping) for row in obj):
        raise TypeError(f"a table is a sequence of dicts, not {type(obj).__name__}")
    columns = list(dict.fromkeys(key for row in obj for key in row))
    head = Node("tr", {}, [_text("th", None, str(column)) for column in columns])
    body: list[Node | str] = [
        Node("tr", {}, [_text("td", None, str(row.get(column, ""))) for column in columns]) for row in obj
    ]
    if caption:
        _add(_text("div", "lt-table-caption", caption))
    _add(Node("table", {"class": "lt-table"}, [Node("thead", {}, [head]), Node("tbody", {}, body)]))


def table_from_dict(
    data: Mapping[str, Any],
    *,
    caption: str | None = None,
    key_header: str = "key",
    value_header: str = "value",
    sort_by: str | None = None,
) -> None:
    """A dict as a table with two columns; ``sort_by``: "key" or "value"."""
    items = list(data.items())
    if sort_by in ("key", "value"):
        items.sort(key=lambda item: item[sort_by == "value"])
    table([{key_header: key, value_header: value} for key, value in items], caption=caption)


def table_from_dict_of_lists(
    columns: Mapping[str, Sequence[Any]], *, caption: str | None = None, order: Sequence[str] | None = None
) -> None:
    """Columns of one length as a table.

    Raises:
        ValueError: the lengths differ.
    """
    names = list(order or columns)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*(columns[n] for n in names), strict=True)]
    table(rows, caption=caption)
