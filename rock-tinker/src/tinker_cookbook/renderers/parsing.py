"""Sampled text to message parts: how a response ended, reasoning blocks, tool call blocks."""

from __future__ import annotations

import json
import re
from enum import StrEnum

from tinker_cookbook.renderers.messages import (
    ContentPart,
    FunctionBody,
    Message,
    TextPart,
    ThinkingPart,
    ToolCall,
    UnparsedToolCall,
    ensure_list,
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
    """Why a response is not usable."""

    TRUNCATED = "truncated"
    INVALID_TOOL_CALL = "invalid_tool_call"
    UNTERMINATED_TOOL_CALL = "unterminated_tool_call"


_TOOL_BLOCK_PAIRS = (
    ("<tool_call>", "</tool_call>"),
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
)


def classify_parse_failure(message: Message, termination: ParseTermination) -> ParseFailureKind | None:
    """Kind of failure of a parsed response, or None if it is fine."""
    unparsed = message.get("unparsed_tool_calls") or []
    if any("not closed" in call.error for call in unparsed):
        return ParseFailureKind.UNTERMINATED_TOOL_CALL
    if unparsed:
        return ParseFailureKind.INVALID_TOOL_CALL
    if not termination.is_clean:
        text = "".join(p["text"] for p in ensure_list(message["content"]) if p["type"] == "text")
        for opening, closing in _TOOL_BLOCK_PAIRS:
            if detect_unterminated_tool_block(text, opening, closing) is not None:
                return ParseFailureKind.UNTERMINATED_TOOL_CALL
        return ParseFailureKind.TRUNCATED
    return None


def detect_unterminated_tool_block(content: str, open_marker: str, close_marker: str) -> str | None:
    """Text from the last opening marker on when no closing marker follows it, else None."""
    start = content.rfind(open_marker)
    if start < 0 or close_marker in content[start:]:
        return None
    return content[start:]


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


def parse_think_blocks(content: str) -> list[ContentPart] | None:
    """Text with ``<think>`` blocks as parts in order; None when there is no block."""
    if "<think>" not in content:
        return None
    parts: list[ContentPart] = []
    position = 0
    for match in re.finditer(r"<think>(.*?)(?:</think>|\Z)", content, flags=re.DOTALL):
        _append_text(parts, content[position : match.start()])
        if match.group(1):
            parts.append(ThinkingPart(type="thinking", thinking=match.group(1)))
        position = match.end()
    _append_text(parts, content[position:])
    return parts


def parse_content_blocks(
    content: str,
) -> tuple[list[ContentPart], list[ToolCall | UnparsedToolCall]] | None:
    """Text with ``<think>`` and JSON ``<tool_call>`` blocks as (parts, calls); None when there is neither."""
    if "<think>" not in content and "<tool_call>" not in content:
        return None
    calls: list[ToolCall | UnparsedToolCall] = []

    def take(match: re.Match[str]) -> str:
        calls.append(read_json_call(match.group(1), match.group(0)))
        return ""

    rest = re.sub(r"<tool_call>(.*?)</tool_call>", take, content, flags=re.DOTALL)
    parts = parse_think_blocks(rest)
    if parts is None:
        parts = []
        _append_text(parts, rest)
    return parts, calls


def read_json_call(body: str, raw_text: str) -> ToolCall | UnparsedToolCall:
    """Read ``{"name": ..., "arguments": {...}}``."""
    try:
        value = json.loads(body.strip())
    except json.JSONDecodeError as error:
        return UnparsedToolCall(raw_text=raw_text, error=f"invalid JSON: {error}")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return UnparsedToolCall(raw_text=raw_text, error="a call needs a string field 'name'")
    arguments = value.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    call_id = value.get("id")
    return ToolCall(
        function=FunctionBody(name=value["name"], arguments=text), id=call_id if isinstance(call_id, str) else None
    )


def parse_response_for_stop_token(
    response: list[int], tokenizer: Tokenizer, stop_token: int
) -> tuple[Message, ParseTermination]:
    """Assistant message up to the stop token. Without one: EOS if the tokenizer's EOS ends it, else MALFORMED."""
    if stop_token in response:
        end = response.index(stop_token)
        termination = ParseTermination.STOP_SEQUENCE if end == len(response) - 1 else ParseTermination.MALFORMED
        return Message(role="assistant", content=str(tokenizer.decode(response[:end]))), termination
    if response and response[-1] == tokenizer.eos_token_id:
        return Message(role="assistant", content=str(tokenizer.decode(response[:-1]))), ParseTermination.EOS
    return Message(role="assistant", content=str(tokenizer.decode(response))), ParseTermination.MALFORMED


def _append_text(parts: list[ContentPart], text: str) -> None:
    if text:
        parts.append(TextPart(type="text", text=text))
