"""gpt-oss: the harmony format with channels."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence
from typing import Any

from tinker_cookbook.renderers.base import RenderContext, RenderedMessage, Renderer, text_chunk
from tinker_cookbook.renderers.messages import (
    ContentPart,
    FunctionBody,
    Message,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolSpec,
    UnparsedToolCall,
    get_text_content,
    thinking_text,
)
from tinker_cookbook.renderers.parsing import ParseTermination
from tinker_cookbook.renderers.pieces import Markup, Piece, PieceEncoder
from tinker_cookbook.renderers.streaming import StreamingParser
from tinker_cookbook.tokenizer_utils import Tokenizer

_TOOLS_NOTE = "\nCalls to these tools must go to the commentary channel: 'functions'."


class GptOssRenderer(Renderer):
    """Harmony format. System messages become developer messages.

    ``use_system_prompt`` adds the fixed system text with ``reasoning_effort`` and ``current_date`` (today if None).
    History keeps the reasoning of every turn only when that turn is rendered after the last user message or trained.
    """

    supports_streaming = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        use_system_prompt: bool = False,
        reasoning_effort: str | None = None,
        current_date: str | None = None,
    ) -> None:
        super().__init__(tokenizer)
        self.use_system_prompt = use_system_prompt
        self.reasoning_effort = reasoning_effort
        self.current_date = current_date
        self._encoder = PieceEncoder(tokenizer)

    def get_stop_sequences(self) -> list[int]:
        return [self._encoder.token("<|return|>"), self._encoder.token("<|call|>")]

    def _prepare(self, messages: Sequence[Message]) -> list[Message]:
        if not self.use_system_prompt:
            return list(messages)
        date = self.current_date or datetime.date.today().isoformat()
        tools = any("namespace functions" in get_text_content(m) for m in messages if m["role"] == "system")
        text = (
            "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
            f"Current date: {date}\n\nReasoning: {self.reasoning_effort or 'medium'}\n\n"
            "# Valid channels: analysis, commentary, final. Channel must be included for every message."
        )
        return [Message(role="harmony_system", content=text + (_TOOLS_NOTE if tools else "")), *messages]

    def _get_generation_suffix(self, role: Role, ctx: RenderContext) -> list[int]:
        return self._encoder.encode([Markup(f"<|start|>{role}")])

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        role, text = message["role"], get_text_content(message)
        if role == "assistant":
            return self._render_assistant(message, ctx)
        if role == "tool":
            name = message.get("name") or "functions.tool"
            name = name if name.startswith("functions.") else f"functions.{name}"
            return self._rendered(f"<|start|>{name} to=assistant", ["<|channel|>commentary<|message|>"], text)
        if role == "harmony_system":
            return self._rendered("<|start|>system", ["<|message|>"], text)
        if role == "system":
            body = text if text.startswith("# ") else f"# Instructions\n\n{text}\n\n"
            return self._rendered("<|start|>developer", ["<|message|>"], body)
        return self._rendered(f"<|start|>{role}", ["<|message|>"], text)

    def _rendered(self, header: str, opening: list[str], text: str) -> RenderedMessage:
        pieces: list[Piece] = [*(Markup(item) for item in opening), text, Markup("<|end|>")]
        return RenderedMessage(
            header=text_chunk(self._encoder.encode([Markup(header)])), output=[text_chunk(self._encoder.encode(pieces))]
        )

    def _render_assistant(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        pieces: list[Piece] = []
        reasoning, text = thinking_text(message["content"]), get_text_content(message)
        calls = message.get("tool_calls") or []

        def begin(channel: str) -> None:
            if pieces:
                pieces.append(Markup("<|start|>assistant"))
            pieces.append(Markup(f"<|channel|>{channel}<|message|>"))

        if reasoning:
            begin("analysis")
            pieces += [reasoning, Markup("<|end|>")]
        if text or not calls:
            begin("commentary" if calls else "final")
            pieces += [text, Markup("<|end|>" if calls or not ctx.is_last else "<|return|>")]
        for call in calls:
            begin(f"commentary to=functions.{call.function.name} <|constrain|>json")
            pieces += [call.function.arguments, Markup("<|call|>")]
        return RenderedMessage(
            header=text_chunk(self._encoder.encode([Markup("<|start|>assistant")])),
            output=[text_chunk(self._encoder.encode(pieces))],
        )

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        stops = self.get_stop_sequences()
        end = next((i for i, token in enumerate(response) if token in stops), None)
        if end is not None:
            tokens = response[:end]
            clean = end == len(response) - 1
            termination = ParseTermination.STOP_SEQUENCE if clean else ParseTermination.MALFORMED
        elif response and response[-1] == self.tokenizer.eos_token_id:
            tokens, termination = response[:-1], ParseTermination.EOS
        else:
            text = str(self.tokenizer.decode(response))
            return Message(role="assistant", content=text), ParseTermination.MALFORMED
        return self._parse_channels(str(self.tokenizer.decode(tokens))), termination

    def _parse_channels(self, text: str) -> Message:
        parts: list[ContentPart] = []
        calls: list[ToolCall] = []
        unparsed: list[UnparsedToolCall] = []
        if "<|channel|>" not in text:
            return Message(role="assistant", content=text)
        for section in re.split(r"<\|end\|>(?:<\|start\|>assistant)?|<\|call\|>(?:<\|start\|>assistant)?", text):
            header, marker, body = section.partition("<|message|>")
            if not marker:
                continue
            recipient = re.search(r"to=functions\.([\w.-]+)", header)
            if recipient:
                try:
                    json.loads(body)
                    calls.append(ToolCall(function=FunctionBody(name=recipient.group(1), arguments=body)))
                except json.JSONDecodeError as error:
                    unparsed.append(UnparsedToolCall(raw_text=section, error=f"invalid JSON: {error}"))
            elif "analysis" in header:
                parts.append(ThinkingPart(type="thinking", thinking=body))
            else:
                parts.append(TextPart(type="text", text=body))
        only_text = all(part["type"] == "text" for part in parts)
        content: str | list[ContentPart] = (
            "".join(part["text"] for part in parts if part["type"] == "text") if only_text else parts
        )
        message = Message(role="assistant", content=content)
        if calls:
            message["tool_calls"] = calls
        if unparsed:
            message["unparsed_tool_calls"] = unparsed
        return message

    def streaming_parser(self) -> StreamingParser:
        from tinker_cookbook.renderers.harmony_stream import HarmonyStreamingParser

        return HarmonyStreamingParser(
            self.tokenizer, self.get_stop_sequences()[0], lambda tokens: self.parse_response(tokens)[0]
        )

    def create_conversation_prefix_with_tools(self, tools: list[ToolSpec], system_prompt: str = "") -> list[Message]:
        declarations = "\n\n".join(
            f"// {tool['description']}\ntype {tool['name']} = (_: {_typescript(tool['parameters'])}) => any;"
            for tool in tools
        )
        instructions = f"# Instructions\n\n{system_prompt}\n\n" if system_prompt else ""
        text = f"{instructions}# Tools\n\n## functions\n\nnamespace functions {{\n\n{declarations}\n\n}} // namespace functions"
        return [Message(role="system", content=text)]


def _typescript(schema: dict[str, Any]) -> str:
    """A JSON schema as a TypeScript type."""
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "object" and "properties" in schema:
        required = set(schema.get("required", ()))
        rows = []
        for name, field in schema["properties"].items():
            note = f"// {field['description']}\n" if field.get("description") else ""
            rows.append(f"{note}{name}{'' if name in required else '?'}: {_typescript(field)},")
        return "{\n" + "\n".join(rows) + "\n}"
    if kind == "array":
        return f"{_typescript(schema.get('items', {}))}[]"
    return {"integer": "number", "number": "number", "string": "string", "boolean": "boolean"}.get(str(kind), "any")
