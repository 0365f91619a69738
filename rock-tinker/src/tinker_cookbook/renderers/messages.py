"""Messages: the chat form of a conversation, before it becomes tokens."""

from __future__ import annotations

import json
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

import pydantic

from tinker_cookbook.exceptions import RendererError


class StrictBase(pydantic.BaseModel):
    """Immutable pydantic model that refuses unknown fields."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class ToolCall(StrictBase):
    """A function call that the model made."""

    class FunctionBody(StrictBase):
        """Name and JSON text of the arguments of a call."""

        name: str
        arguments: str

    type: Literal["function"] = "function"
    id: str | None = None
    function: FunctionBody


FunctionBody = ToolCall.FunctionBody


class UnparsedToolCall(StrictBase):
    """Text of a call that could not be read, and why."""

    raw_text: str
    error: str


class TextPart(TypedDict):
    """Ordinary text."""

    type: Literal["text"]
    text: str


class ThinkingPart(TypedDict):
    """Reasoning of the model."""

    type: Literal["thinking"]
    thinking: str


class ImagePart(TypedDict):
    """A PIL image, a URL or a data URI."""

    type: Literal["image"]
    image: Any


class AudioPart(TypedDict):
    """Encoded audio."""

    type: Literal["audio"]
    audio: bytes | str
    format: NotRequired[str]
    num_frames: NotRequired[int]
    sample_rate: NotRequired[int]


ContentPart: TypeAlias = TextPart | ThinkingPart | ImagePart | AudioPart
Content: TypeAlias = str | list[ContentPart]
Role: TypeAlias = str


class Message(TypedDict):
    """One turn of a conversation."""

    role: Role
    content: Content
    tool_calls: NotRequired[list[ToolCall]]
    unparsed_tool_calls: NotRequired[list[UnparsedToolCall]]
    trainable: NotRequired[bool]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class ToolSpec(TypedDict):
    """Declaration of a tool: ``parameters`` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]


def ensure_text(content: Content) -> str:
    """The text of a content that must be plain text.

    Raises:
        RendererError: the content holds reasoning, images or several parts.
    """
    if isinstance(content, str):
        return content
    if len(content) == 1 and content[0]["type"] == "text":
        return content[0]["text"]
    kinds = [part["type"] for part in content]
    raise RendererError(f"content must be plain text here, got {len(content)} parts of types {kinds}")


def ensure_list(content: Content) -> list[ContentPart]:
    """Content as a list of parts."""
    return [TextPart(type="text", text=content)] if isinstance(content, str) else content


def has_thinking(content: Content) -> bool:
    """Whether any part is reasoning with text in it."""
    return not isinstance(content, str) and any(p["type"] == "thinking" and p["thinking"].strip() for p in content)


def remove_thinking(parts: list[ContentPart]) -> list[ContentPart]:
    """The parts without reasoning."""
    return [part for part in parts if part["type"] != "thinking"]


def thinking_text(content: Content) -> str:
    """All reasoning of a content, joined."""
    return "".join(p["thinking"] for p in ensure_list(content) if p["type"] == "thinking")


def get_text_content(message: Message) -> str:
    """Text of a message without reasoning, images and audio."""
    return "".join(part["text"] for part in ensure_list(message["content"]) if part["type"] == "text")


def format_content_as_string(content: Content, separator: str = "\n") -> str:
    """Readable form of any content: reasoning in ``<think>`` tags, images by address or size, audio as ``[audio]``.

    Raises:
        RendererError: a part is of another type.
    """
    if isinstance(content, str):
        return content
    shown = []
    for part in content:
        if part["type"] == "text":
            shown.append(part["text"])
        elif part["type"] == "thinking":
            shown.append(f"<think>{part['thinking']}</think>")
        elif part["type"] == "image":
            shown.append(f"<image>{_described(part['image'])}</image>")
        elif part["type"] == "audio":
            shown.append("[audio]")
        else:
            raise RendererError(f"content part of type {part['type']!r} is unknown")
    return separator.join(shown)


def _described(image: Any) -> str:
    return image if isinstance(image, str) else f"Image({image.width}x{image.height}, {image.mode})"


def content_to_jsonable(content: Content) -> str | list[dict[str, Any]]:
    """Content that ``json.dumps`` accepts; binary media become a short description."""
    if isinstance(content, str):
        return content
    rows: list[dict[str, Any]] = []
    for part in content:
        row: dict[str, Any] = dict(part)
        for key in ("image", "audio"):
            if key in row and not isinstance(row[key], str):
                row[key] = f"<{type(row[key]).__name__}>"
        rows.append(row)
    return rows


def message_to_jsonable(message: Message) -> dict[str, Any]:
    """Message that ``json.dumps`` accepts."""
    row: dict[str, Any] = {**message, "content": content_to_jsonable(message["content"])}
    for key in ("tool_calls", "unparsed_tool_calls"):
        if key in row:
            row[key] = [call.model_dump() for call in row[key]]
    return row


def to_openai_message(message: Message, argument_objects: bool = False) -> dict[str, Any]:
    """Message in the form of the OpenAI chat API; reasoning goes to ``reasoning_content``.

    ``argument_objects``: arguments of calls as objects, which some chat templates want, instead of JSON text.
    """
    row: dict[str, Any] = {"role": message["role"], "content": get_text_content(message)}
    if any(part["type"] == "thinking" for part in ensure_list(message["content"])):
        row["reasoning_content"] = thinking_text(message["content"])
    if message.get("tool_calls"):
        row["tool_calls"] = [
            {
                "type": "function",
                "id": call.id or f"call_{index}",
                "function": {
                    "name": call.function.name,
                    "arguments": call_arguments(call) if argument_objects else call.function.arguments,
                },
            }
            for index, call in enumerate(message["tool_calls"])
        ]
    if "tool_call_id" in message:
        row["tool_call_id"] = message["tool_call_id"]
    if "name" in message and message["role"] == "tool":
        row["name"] = message["name"]
    return row


def call_arguments(call: ToolCall) -> Any:
    """Arguments of a call as a Python value; text that is not JSON stays text."""
    try:
        return json.loads(call.function.arguments or "{}")
    except json.JSONDecodeError:
        return call.function.arguments
