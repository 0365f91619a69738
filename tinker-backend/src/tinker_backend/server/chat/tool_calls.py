"""Finds the tool calls in what a model writes, while it writes.

Four styles are in use among open models; which one a model speaks is told by its chat template.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .conversation import ToolCall

Part = str | ToolCall


@dataclass(frozen=True)
class ToolStyle:
    """How calls are written: between ``start`` and ``end`` (None: to the end of the answer).

    ``parse`` reads what is between; None means that it is no call. ``whole``: only an answer that begins with
    ``start`` is a call, and ``start`` belongs to it.
    """

    name: str
    start: str
    end: str | None
    parse: Callable[[str], list[ToolCall] | None]
    whole: bool = False


def _call(name: Any, arguments: Any) -> ToolCall | None:
    if not isinstance(name, str) or not name:
        return None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return ToolCall(new_call_id(), name, arguments)
    if arguments is None:
        arguments = {}
    return ToolCall(new_call_id(), name, arguments) if isinstance(arguments, dict) else None


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{secrets.token_hex(12)}"


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parse_json(text: str) -> list[ToolCall] | None:
    """``{"name": ..., "arguments": {...}}`` (or ``parameters``), one or a list."""
    document = _load(text.strip())
    entries = document if isinstance(document, list) else [document]
    calls = [
        _call(entry.get("name"), entry.get("arguments", entry.get("parameters")))
        for entry in entries
        if isinstance(entry, dict)
    ]
    if not calls or len(calls) != len(entries) or None in calls:
        return None
    return [call for call in calls if call is not None]


_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)(?:</function>\s*|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _parse_xml(text: str) -> list[ToolCall] | None:
    """``<function=name><parameter=key>value</parameter></function>``; values that are JSON are read as such."""
    match = _FUNCTION.fullmatch(text)
    if match is None:
        return _parse_json(text)
    arguments: dict[str, Any] = {}
    for key, value in _PARAMETER.findall(match[2]):
        loaded = _load(value)
        arguments[key] = value if loaded is None and value.strip() != "null" else loaded
    return [ToolCall(new_call_id(), match[1], arguments)]


HERMES = ToolStyle("hermes", "<tool_call>", "</tool_call>", _parse_json)
XML = ToolStyle("xml", "<tool_call>", "</tool_call>", _parse_xml)
MISTRAL = ToolStyle("mistral", "[TOOL_CALLS]", None, _parse_json)
BARE_JSON = ToolStyle("bare json", "{", None, _parse_json, whole=True)


def style_of(template: str | None) -> ToolStyle:
    """The style that the chat template writes calls in; the most common one where it does not say."""
    text = template or ""
    if "<function=" in text:
        return XML
    if "<tool_call>" in text:
        return HERMES
    if "[TOOL_CALLS]" in text:
        return MISTRAL
    if "<|python_tag|>" in text or '"parameters": dictionary' in text:
        return BARE_JSON
    return HERMES


class ToolCallParser:
    """Splits a growing answer into text and calls. Text that may still become a call is held back."""

    def __init__(self, style: ToolStyle) -> None:
        self._style = style
        self._held = ""
        self._inside = False
        self._fresh = True
        """Nothing but blanks was seen yet."""
        self.calls = 0

    def feed(self, text: str) -> list[Part]:
        """What is certain after ``text``."""
        self._held += text
        parts: list[Part] = []
        while True:
            if self._inside:
                end = self._style.end
                if end is None or end not in self._held:
                    return parts
                body, self._held = self._held.split(end, 1)
                parts += self._close(body, end)
                continue
            start = self._style.start
            if self._style.whole:
                stripped = self._held.lstrip()
                if not self._fresh or (stripped and not stripped.startswith(start)):
                    return parts + self._release(len(self._held))
                self._inside = stripped.startswith(start)
                return parts
            if start in self._held:
                before, self._held = self._held.split(start, 1)
                if before.strip():
                    parts.append(before.rstrip())
                    self._fresh = False
                self._inside = True
                continue
            return parts + self._release(_certain(self._held, start))

    def finish(self) -> list[Part]:
        """What is left when the answer ends; a call that was not closed counts when it can be read."""
        if not self._inside:
            return self._release(len(self._held.rstrip()) if self.calls else len(self._held))
        body, self._held = self._held, ""
        return self._close(body, "")

    def _close(self, body: str, end: str) -> list[Part]:
        self._inside = False
        calls = self._style.parse(body)
        if calls is None:
            self._fresh = False
            start = "" if self._style.whole else self._style.start
            return [start + body + end]
        self.calls += len(calls)
        return list(calls)

    def _release(self, length: int) -> list[Part]:
        text, self._held = self._held[:length], self._held[length:]
        if text.strip():
            self._fresh = False
        return [text] if text else []


def _certain(text: str, start: str) -> int:
    """How much of ``text`` cannot be the beginning of a call, nor the blanks before one."""
    held = next((n for n in range(min(len(start) - 1, len(text)), 0, -1) if text.endswith(start[:n])), 0)
    return len(text[: len(text) - held].rstrip())
