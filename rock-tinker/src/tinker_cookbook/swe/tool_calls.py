"""Tool calls in model text: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Qwen models write them."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

_BLOCK = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class ParsedAnswer:
    """What a completion says: `content` outside the calls and the calls in OpenAI's shape."""

    content: str
    tool_calls: list[dict[str, Any]]


def parse_tool_calls(text: str) -> ParsedAnswer:
    """Splits model text into content and tool calls.

    A block that is no valid call (broken JSON, no name, arguments that are no object) stays in the content as it was
    written, so that the agent can tell the model what is wrong with it.
    """
    calls: list[dict[str, Any]] = []

    def take(match: re.Match[str]) -> str:
        call = _read_call(match.group(1))
        if call is None:
            return match.group(0)
        calls.append(call)
        return ""

    content = _BLOCK.sub(take, text)
    return ParsedAnswer(content=content.strip() if calls else text, tool_calls=calls)


def _read_call(block: str) -> dict[str, Any] | None:
    try:
        call = json.loads(block)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if not isinstance(arguments, dict):
        return None
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call["name"], "arguments": json.dumps(arguments, ensure_ascii=False)},
    }
