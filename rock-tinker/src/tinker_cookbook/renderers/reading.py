"""Sampled tokens of a family to messages."""

from __future__ import annotations

from tinker_cookbook.renderers.families import Family, Parsing
from tinker_cookbook.renderers.messages import (
    ContentPart,
    Message,
    TextPart,
    ThinkingPart,
    ToolCall,
    UnparsedToolCall,
    ensure_list,
)
from tinker_cookbook.renderers.parsing import ParseTermination, split_at_stop, with_reasoning
from tinker_cookbook.tokenizer_utils import Tokenizer


def parse_tokens(
    family: Family, response: list[int], tokenizer: Tokenizer, stops: list[int]
) -> tuple[Message, ParseTermination]:
    """Message of a response and how it ended; a response that was cut off stays text."""
    tokens, termination = split_at_stop(response, tokenizer, stops)
    text = str(tokenizer.decode(tokens))
    if termination.is_clean:
        return parse_text(family, text), termination
    return Message(role="assistant", content=opened(family.parsing, text)), termination


def opened(parsing: Parsing, text: str) -> str:
    """The text with the opening marker that the prompt already held."""
    missing = parsing.prefix and "</think>" in text and not text.startswith(parsing.prefix)
    return parsing.prefix + text if missing else text


def parse_text(family: Family, text: str) -> Message:
    """Sampled text without its stop marker as a message."""
    if not family.parsing.reasons:
        return Message(role="assistant", content=text)
    text = opened(family.parsing, text)
    content: str | list[ContentPart]
    calls: list[ToolCall | UnparsedToolCall] = []
    if family.tools is not None:
        content, calls = family.tools.parse(text)
    else:
        content = with_reasoning(text)
    if family.parsing.trim != "nothing" and not isinstance(content, str):
        content = _trimmed(content, all_space=family.parsing.trim == "space")
    return with_calls(Message(role="assistant", content=content), calls)


def with_calls(message: Message, calls: list[ToolCall | UnparsedToolCall]) -> Message:
    """The message with its calls, readable and unreadable ones apart."""
    if parsed := [call for call in calls if isinstance(call, ToolCall)]:
        message["tool_calls"] = parsed
    if unparsed := [call for call in calls if isinstance(call, UnparsedToolCall)]:
        message["unparsed_tool_calls"] = unparsed
    return message


def _trimmed(parts: list[ContentPart], all_space: bool) -> list[ContentPart]:
    out: list[ContentPart] = []
    after_thinking = False
    for part in ensure_list(parts):
        if part["type"] == "thinking":
            thinking = part["thinking"].strip() if all_space else part["thinking"].strip("\n")
            out += [ThinkingPart(type="thinking", thinking=thinking)] if thinking else []
        elif part["type"] == "text":
            out.append(TextPart(type="text", text=part["text"].lstrip("\n") if after_thinking else part["text"]))
        after_thinking = part["type"] == "thinking"
    return out
