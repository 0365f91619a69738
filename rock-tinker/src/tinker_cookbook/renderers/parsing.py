"""Sampled text to message parts: how a response ended, reasoning blocks, tool call blocks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from enum import StrEnum

from tinker_cookbook.renderers.messages import (
    ContentPart,
    FunctionBody,
    Message,
    TextPart,
    ThinkingPart,
    ToolCall,
    UnparsedToolCall,
)
from tinker_cookbook.tokenizer_utils import Tokenizer


class ParseTermination(StrEnum):
    """How a sampled response ended. Every member is truthy: test ``is_clean``, never the member itself."""

    STOP_SEQUENCE = "stop_sequence"
    EOS = "eos"
    MALFORMED = "malformed"

    @property
    def is_clean(self) -> bool:
        """The response ended by itself (stop sequence or end of text)."""
        return self is not ParseTermination.MALFORMED

    @property
    def is_stop_sequence(self) -> bool:
        """The response ended with the stop sequence of its renderer."""
        return self is ParseTermination.STOP_SEQUENCE


class ParseFailureKind(StrEnum):
    """Why a response is not usable: its framing (it did not end by itself) or what stands in it."""

    STRUCTURAL = "structural"
    CONTENT = "content"


PARSE_FAILURE_DETAIL_MAX_CHARS = 16_384
UNTERMINATED_TOOL_BLOCK_ERROR = "unterminated tool block"


def classify_parse_failure(message: Message, termination: ParseTermination) -> tuple[ParseFailureKind, str] | None:
    """Kind and description (of limited length) of the failure of a parsed response; None if it is fine."""
    if not termination.is_clean:
        text = f"the response did not terminate cleanly (termination={termination.value})"
        return ParseFailureKind.STRUCTURAL, f"{text}: it ends neither with a stop sequence nor with the end of text"
    unparsed = message.get("unparsed_tool_calls") or []
    if not unparsed:
        return None
    return ParseFailureKind.CONTENT, "\n".join(call.error for call in unparsed)[:PARSE_FAILURE_DETAIL_MAX_CHARS]


def detect_unterminated_tool_block(content: str, open_marker: str, close_marker: str) -> UnparsedToolCall | None:
    """The last block as a call that cannot be read, when more blocks are opened than closed."""
    if content.count(open_marker) <= content.count(close_marker):
        return None
    error = f"{UNTERMINATED_TOOL_BLOCK_ERROR}: {open_marker!r} opened without a matching {close_marker!r}"
    return UnparsedToolCall(raw_text=content[content.rfind(open_marker) :], error=error)


def split_thinking(text: str, opening: str = "<think>", closing: str = "</think>") -> tuple[str | None, str]:
    """Split ``<think>reasoning</think>rest``; a missing opening marker is fine (it was part of the prompt).

    Returns (reasoning or None, rest). Text without a closing marker has no reasoning block.
    """
    end = text.find(closing)
    if end < 0:
        return None, text
    start = text.find(opening)
    begin = start + len(opening) if 0 <= start < end else 0
    before = text[:start] if 0 <= start < end else ""
    return text[begin:end], before + text[end + len(closing) :]


def without_think_blocks(text: str) -> str:
    """Text without its closed ``<think>`` blocks."""
    return re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL)


def parse_think_blocks(content: str) -> list[ContentPart] | None:
    """Text with ``<think>`` blocks as parts in order; None when there is no block. A block that is not closed stays
    text."""
    if "<think>" not in content:
        return None
    parts: list[ContentPart] = []
    position = 0
    for match in re.finditer(r"<think>(.*?)</think>", content, flags=re.DOTALL):
        _append_text(parts, content[position : match.start()])
        if match.group(1):
            parts.append(ThinkingPart(type="thinking", thinking=match.group(1)))
        position = match.end()
    _append_text(parts, content[position:])
    return parts


def with_reasoning(text: str) -> str | list[ContentPart]:
    """Text as parts where it has ``<think>`` blocks, else as it is."""
    parts = parse_think_blocks(text)
    return text if parts is None else parts


def parse_content_blocks(
    content: str,
) -> tuple[list[ContentPart], list[ToolCall | UnparsedToolCall]] | None:
    """Text with ``<think>`` and JSON ``<tool_call>`` blocks as (parts, calls); None when there is neither."""
    return read_blocks(content, "<tool_call>", "</tool_call>", lambda body, raw: [read_json_call(body, raw)])


def read_blocks(
    content: str, opening: str, closing: str, read: Callable[[str, str], list[ToolCall | UnparsedToolCall]]
) -> tuple[list[ContentPart], list[ToolCall | UnparsedToolCall]] | None:
    """Text with ``<think>`` blocks and blocks of calls as (parts in order, calls); None when there is neither.

    ``read`` gets the inside of a block and the whole of it. Blocks that are not closed stay text.
    """
    if "<think>" not in content and opening not in content:
        return None
    pattern = rf"<think>(?P<thinking>.*?)</think>|{re.escape(opening)}(?P<calls>.*?){re.escape(closing)}"
    parts: list[ContentPart] = []
    calls: list[ToolCall | UnparsedToolCall] = []
    position = 0
    for match in re.finditer(pattern, content, flags=re.DOTALL):
        _append_text(parts, content[position : match.start()])
        if match["calls"] is not None:
            calls += read(match["calls"], match[0])
        elif match["thinking"]:
            parts.append(ThinkingPart(type="thinking", thinking=match["thinking"]))
        position = match.end()
    _append_text(parts, content[position:])
    return parts, calls


def read_json_call(body: str, raw_text: str) -> ToolCall | UnparsedToolCall:
    """Read ``{"name": ..., "arguments": {...}}``."""
    try:
        value = json.loads(body.strip())
    except json.JSONDecodeError as error:
        return UnparsedToolCall(raw_text=raw_text, error=f"Invalid JSON: {error}")
    if not isinstance(value, dict):
        return UnparsedToolCall(raw_text=raw_text, error="Tool call is not a JSON object")
    name, arguments, call_id = value.get("name"), value.get("arguments"), value.get("id")
    if not isinstance(name, str):
        return UnparsedToolCall(raw_text=raw_text, error="Missing or invalid 'name' field")
    if not isinstance(arguments, dict):
        return UnparsedToolCall(raw_text=raw_text, error="Missing or invalid 'arguments' field")
    call_id = call_id if isinstance(call_id, str) else None
    return ToolCall(function=FunctionBody(name=name, arguments=json.dumps(arguments)), id=call_id)


def parse_response_for_stop_token(
    response: list[int], tokenizer: Tokenizer, stop_token: int
) -> tuple[Message, ParseTermination]:
    """Assistant message up to the stop token; MALFORMED without one, and with several."""
    tokens, termination = split_at_stop(response, tokenizer, [stop_token])
    return Message(role="assistant", content=str(tokenizer.decode(tokens))), termination


def split_at_stop(
    response: list[int], tokenizer: Tokenizer, stops: Iterable[int]
) -> tuple[list[int], ParseTermination]:
    """Tokens before the stop token, and how the response ended.

    EOS: a stop token that is the tokenizer's end of text beside others. Several stop tokens are MALFORMED: sampling
    did not stop at them.
    """
    stop_set = list(stops)
    found = [index for index, token in enumerate(response) if token in stop_set]
    if not found:
        return list(response), ParseTermination.MALFORMED
    if len(found) > 1:
        return response[: found[0]], ParseTermination.MALFORMED
    ends_text = len(stop_set) > 1 and response[found[0]] == tokenizer.eos_token_id
    return response[: found[0]], ParseTermination.EOS if ends_text else ParseTermination.STOP_SEQUENCE


def _append_text(parts: list[ContentPart], text: str) -> None:
    if text:
        parts.append(TextPart(type="text", text=text))
