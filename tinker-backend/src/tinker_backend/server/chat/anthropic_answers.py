"""Answers of the Anthropic door."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .answer import Finish
from .conversation import ToolCall
from .tool_calls import Part

_STOP_REASONS: dict[Finish, str] = {
    "stop": "end_turn",
    "stop_sequence": "stop_sequence",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(status: int, message: str) -> dict[str, Any]:
    """The door's form of an error."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def sse(event: dict[str, Any]) -> str:
    """One event of a stream."""
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"


def usage(input_tokens: int, output_tokens: int, cached: int = 0) -> dict[str, Any]:
    """Token counts; cached prompt tokens are counted apart."""
    return {
        "input_tokens": input_tokens - cached,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def call_id(call: ToolCall) -> str:
    """The call's id in this door's form."""
    return "toolu_" + call.id.removeprefix("call_")


def blocks(text: str, calls: list[ToolCall]) -> list[dict[str, Any]]:
    """The content of a whole answer."""
    content: list[dict[str, Any]] = []
    if text or not calls:
        content.append({"type": "text", "text": text})
    for call in calls:
        content.append({"type": "tool_use", "id": call_id(call), "name": call.name, "input": _input(call)})
    return content


def message(
    identity: str,
    model: str,
    content: list[dict[str, Any]],
    finish: Finish | None,
    stop_sequence: str | None,
    counts: dict[str, Any],
) -> dict[str, Any]:
    """A message; ``finish`` None while it is being written."""
    return {
        "id": identity,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None if finish is None else _STOP_REASONS[finish],
        "stop_sequence": stop_sequence if finish == "stop_sequence" else None,
        "usage": counts,
    }


class EventWriter:
    """The events of a streamed answer: blocks are opened and closed as text and calls come."""

    def __init__(self) -> None:
        self._index = 0
        self._open = False

    def part(self, part: Part) -> Iterator[dict[str, Any]]:
        """Events of one piece of text or one call."""
        if isinstance(part, str):
            if not self._open:
                yield self._start({"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": part})
            return
        yield from self.close()
        yield self._start({"type": "tool_use", "id": call_id(part), "name": part.name, "input": {}})
        yield self._delta({"type": "input_json_delta", "partial_json": json.dumps(_input(part), ensure_ascii=False)})
        yield from self.close()

    def close(self) -> Iterator[dict[str, Any]]:
        """Ends the open block."""
        if self._open:
            yield {"type": "content_block_stop", "index": self._index}
            self._open = False
            self._index += 1

    def end(self, finish: Finish, stop_sequence: str | None, counts: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The last events."""
        if self._index == 0 and not self._open:
            yield self._start({"type": "text", "text": ""})
        yield from self.close()
        delta = {
            "stop_reason": _STOP_REASONS[finish],
            "stop_sequence": stop_sequence if finish == "stop_sequence" else None,
        }
        yield {"type": "message_delta", "delta": delta, "usage": counts}
        yield {"type": "message_stop"}

    def _start(self, block: dict[str, Any]) -> dict[str, Any]:
        self._open = True
        return {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def _input(call: ToolCall) -> dict[str, Any]:
    return call.arguments if isinstance(call.arguments, dict) else {"text": call.arguments}
