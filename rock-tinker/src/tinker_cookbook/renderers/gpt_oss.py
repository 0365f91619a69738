"""gpt-oss: the harmony format with channels."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence

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
    ensure_text,
    get_text_content,
    thinking_text,
)
from tinker_cookbook.renderers.parsing import ParseTermination, split_at_stop
from tinker_cookbook.renderers.pieces import Markup, Piece, PieceEncoder
from tinker_cookbook.renderers.reading import with_calls
from tinker_cookbook.renderers.streaming import StreamingParser
from tinker_cookbook.renderers.tool_schemas import harmony_declaration
from tinker_cookbook.tokenizer_utils import Tokenizer

_TOOLS_NOTE = "Calls to these tools must go to the commentary channel: 'functions'."
# System messages of the conversation are developer messages in harmony; this role is harmony's own system message.
_SYSTEM = "_gptoss_internal_system"


class GptOssRenderer(Renderer):
    """Harmony format. System messages become developer messages.

    ``use_system_prompt`` adds the fixed system text with ``reasoning_effort`` and ``current_date`` (today if None).
    History keeps the reasoning of every turn only when that turn is rendered after the last user message or trained.
    """

    supports_streaming = True
    system_prompt_content = (
        "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
        "Current date: {current_date}\n\nReasoning: {reasoning_effort}\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message."
    )
    use_system_prompt: bool = False
    reasoning_effort: str | None = None
    current_date: str | None = None

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

    def _prepare(self, messages: Sequence[Message], generating: bool = False) -> list[Message]:
        if not self.use_system_prompt:
            return list(messages)
        date = self.current_date or datetime.date.today().isoformat()
        text = self.system_prompt_content.format(current_date=date, reasoning_effort=self.reasoning_effort or "medium")
        system = Message(role=_SYSTEM, content=text)
        if messages and "trainable" in messages[0]:
            system["trainable"] = False
        return [system, *messages]

    def _get_generation_suffix(self, role: Role, ctx: RenderContext) -> list[int]:
        header = self.render_message(Message(role=role, content=""), ctx).header
        return list(header.tokens) if header is not None else []

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        role = message["role"]
        if role == "assistant":
            return self._render_assistant(message, ctx)
        text = ensure_text(message["content"])
        if role == "tool":
            name = (message.get("name") or "unknown").removeprefix("functions.")
            header: list[Piece] = [Markup("<|start|>"), f"functions.{name} to=assistant"]
            return self._rendered(header, [Markup("<|channel|>commentary<|message|>"), text, Markup("<|end|>")])
        if role == "system":
            role, text = "developer", f"# Instructions\n\n{text}\n\n"
        header = [Markup("<|start|>"), "system" if role == _SYSTEM else role]
        return self._rendered(header, [Markup("<|message|>"), text, Markup("<|end|>")])

    def _rendered(self, header: list[Piece], output: list[Piece]) -> RenderedMessage:
        return RenderedMessage(
            header=text_chunk(self._encoder.encode(header)), output=[text_chunk(self._encoder.encode(output))]
        )

    def _render_assistant(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        content = message["content"]
        reasoning, text = thinking_text(content), get_text_content(message)
        if not isinstance(content, str) and not any(part["type"] == "thinking" for part in content):
            text = ensure_text(content)
        calls = message.get("tool_calls") or []
        start: list[Piece] = [Markup("<|start|>"), "assistant"]
        parts: list[list[Piece]] = []
        if reasoning:
            parts.append([Markup("<|channel|>analysis<|message|>"), reasoning, Markup("<|end|>")])
        if text or not calls:
            channel = "commentary" if calls else "final"
            end = "<|return|>" if ctx.is_last and not calls else "<|end|>"
            parts.append([Markup(f"<|channel|>{channel}<|message|>"), text, Markup(end)])
        for call in calls:
            recipient: list[Piece] = [f" to=functions.{call.function.name}"]
            body: list[Piece] = [Markup("<|channel|>commentary <|constrain|>json<|message|>"), call.function.arguments]
            parts.append([*recipient, *body, Markup("<|call|>")])
        output = [piece for part in parts for piece in (*start, *part)][len(start) :]
        return self._rendered(start, output)

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        tokens, termination = split_at_stop(response, self.tokenizer, self.get_stop_sequences())
        text = str(self.tokenizer.decode(tokens))
        if not termination.is_clean:
            return Message(role="assistant", content=text), termination
        return self._parse_channels(text), termination

    def _parse_streamed(self, tokens: list[int]) -> Message:
        stops = self.get_stop_sequences()
        end = next((index for index, token in enumerate(tokens) if token in stops), len(tokens))
        return self._parse_channels(str(self.tokenizer.decode(tokens[:end])))

    def _parse_channels(self, text: str) -> Message:
        parts: list[ContentPart] = []
        calls: list[ToolCall | UnparsedToolCall] = []
        for section in re.split(r"<\|end\|>|<\|call\|>|<\|return\|>", text):
            header, _, body = section.partition("<|message|>")
            channel = re.search(r"<\|channel\|>(\w+)", header)
            recipient = re.search(r"to=functions\.([\w.-]+)", header)
            if recipient:
                try:
                    json.loads(body)
                    calls.append(ToolCall(function=FunctionBody(name=recipient.group(1), arguments=body)))
                except json.JSONDecodeError as error:
                    calls.append(UnparsedToolCall(raw_text=section, error=f"Invalid JSON: {error}"))
            elif channel is not None and body:
                if channel.group(1) == "analysis":
                    parts.append(ThinkingPart(type="thinking", thinking=body))
                elif channel.group(1) in ("commentary", "final"):
                    parts.append(TextPart(type="text", text=body))
        content: str | list[ContentPart] = parts or ("" if calls else text)
        return with_calls(Message(role="assistant", content=content), calls)

    def streaming_parser(self) -> StreamingParser:
        from tinker_cookbook.renderers.harmony_stream import HarmonyStreamingParser

        first, second = self.get_stop_sequences()
        return HarmonyStreamingParser(self.tokenizer, first, self._parse_streamed, other_stops=(second,))

    def create_conversation_prefix_with_tools(self, tools: list[ToolSpec], system_prompt: str = "") -> list[Message]:
        sections = [f"# Instructions\n\n{system_prompt}"] if system_prompt else []
        sections += [harmony_declaration(tools)] if tools else []
        note = [Message(role=_SYSTEM, content=_TOOLS_NOTE)] if tools else []
        return [*note, *([Message(role="developer", content="\n\n".join(sections))] if sections else [])]
