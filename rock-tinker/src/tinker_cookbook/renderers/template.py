"""Draws a conversation from the table in ``families``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import Chunk, RenderContext, RenderedMessage, Renderer, text_chunk
from tinker_cookbook.renderers.families import Family, Reasoning
from tinker_cookbook.renderers.images import image_to_chunk
from tinker_cookbook.renderers.messages import (
    ContentPart,
    Message,
    Role,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolSpec,
    UnparsedToolCall,
    ensure_list,
    ensure_text,
    get_text_content,
    remove_thinking,
    thinking_text,
)
from tinker_cookbook.renderers.parsing import ParseTermination, parse_response_for_stop_token, split_thinking
from tinker_cookbook.renderers.pieces import Break, Markup, Piece, PieceEncoder
from tinker_cookbook.renderers.streaming import ReasoningStreamingParser, StreamingParser
from tinker_cookbook.tokenizer_utils import Tokenizer


class TemplateRenderer(Renderer):
    """A family of ``families.FAMILIES`` with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, family: Family, image_processor: Any | None = None) -> None:
        super().__init__(tokenizer)
        self.family = family
        self.image_processor = image_processor
        self.disables_thinking = family.refuses_reasoning
        self._encoder = PieceEncoder(tokenizer)

    @property
    def has_extension_property(self) -> bool:
        return self.family.extends

    @property
    def _bos_tokens(self) -> list[int]:
        return self._encoder.encode([Markup(self.family.bos)]) if self.family.bos else []

    def get_stop_sequences(self) -> list[int]:
        return [self._encoder.token(marker) for marker in self.family.stop]

    def _prepare(self, messages: Sequence[Message]) -> list[Message]:
        default = self.family.default_system
        if default is None or any(message["role"] == "system" for message in messages):
            return list(messages)
        return [Message(role="system", content=default), *messages]

    # Messages to tokens

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        role = message["role"]
        tools = self.family.tools
        if role == "tool" and tools is not None:
            return self._render_result(message, ctx)
        header: list[Piece] = [Markup(self._separator(ctx) + self._header(role, message))]
        body: list[Piece] = []
        if role == "assistant" and self.family.reasoning is not None:
            in_header, in_body = self._reasoning_pieces(self.family.reasoning, message, ctx)
            if in_header:
                header += [Break(), *in_header]
            body += in_body
            parts = remove_thinking(ensure_list(message["content"]))
        else:
            parts = ensure_list(message["content"])
            if any(part["type"] == "thinking" for part in parts):
                ensure_text(message["content"])  # raises: the family has no form for reasoning
        calls = message.get("tool_calls") or []
        if calls and tools is None:
            raise RendererError(f"message {ctx.idx}: this renderer has no form for tool_calls")
        if calls and tools is not None:
            call_text = tools.calls(calls, get_text_content(message))
            return self._rendered(header, body, parts, [Markup(call_text + self._end(role))])
        return self._rendered(header, body, parts, [Markup(self._end(role))])

    def _rendered(
        self, header: list[Piece], body: list[Piece], parts: list[ContentPart], tail: list[Piece]
    ) -> RenderedMessage:
        output: list[Chunk] = []
        pieces: list[Piece] = list(body)
        for part in parts:
            if part["type"] == "text":
                pieces.append(part["text"])
            elif part["type"] == "image" and self.family.vision is not None:
                opening, closing = self.family.vision
                output.append(text_chunk(self._encoder.encode([*pieces, Markup(opening)])))
                output.append(image_to_chunk(part["image"], self.image_processor))
                pieces = [Markup(closing)]
            else:
                raise RendererError(f"content part of type {part['type']!r} has no form in this renderer")
        output.append(text_chunk(self._encoder.encode([*pieces, *tail])))
        return RenderedMessage(header=text_chunk(self._encoder.encode(header)), output=output)

    def _reasoning_pieces(
        self, style: Reasoning, message: Message, ctx: RenderContext
    ) -> tuple[list[Piece], list[Piece]]:
        """Reasoning block of an assistant message as (pieces of the header, pieces of the output)."""
        thinking = thinking_text(message["content"]).strip("\n" if style.closing.startswith("\n") else "")
        current = ctx.idx > ctx.last_user_index
        if current:
            wants = {
                "always": True,
                "last_or_given": ctx.is_last or bool(thinking),
                "given": bool(thinking),
                "never": False,
            }[style.current]
        else:
            thinking = thinking if style.history.startswith("keep") else ""
            wants = bool(thinking) or style.history.endswith("empty")
        if not wants:
            bare: list[Piece] = [Markup(style.bare)] if style.bare else []
            return (bare, []) if style.in_header else ([], bare)
        closed = self.family.refuses_reasoning or style.empty is not None
        if not thinking and closed:
            block: list[Piece] = [Markup(style.empty_block)]
            if style.in_header:
                return block, []
            # The block is prompt when sampling: encode it apart from what follows.
            return [], [*block, Break()] if style.prompt else block
        inner: list[Piece] = [thinking, Markup(style.closing)]
        if style.in_header:
            return [Markup(style.opening)], inner
        return [], [Markup(style.opening), *([Break()] if style.prompt else []), *inner]

    def _render_result(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        tools = self.family.tools
        assert tools is not None
        role = tools.result_role
        first = not (tools.joins_results and ctx.prev_message and ctx.prev_message["role"] == "tool")
        last = not (tools.joins_results and ctx.next_message and ctx.next_message["role"] == "tool")
        header = self._separator(ctx) + self._header(role, message) if first else "\n"
        opening, closing = tools.result({**message, "content": "\0"}).split("\0")
        body: list[Piece] = [Markup(opening), get_text_content(message), Markup(closing)]
        if last:
            body.append(Markup(self._end(role)))
        return RenderedMessage(
            header=text_chunk(self._encoder.encode([Markup(header)])), output=[text_chunk(self._encoder.encode(body))]
        )

    def _separator(self, ctx: RenderContext) -> str:
        return self.family.separator if ctx.idx > 0 else ""

    def _header(self, role: Role, message: Message) -> str:
        headers = self.family.headers
        return headers.get(role, headers["*"]).format(role=role)

    def _end(self, role: Role) -> str:
        return self.family.ends.get(role, self.family.ends["*"])

    def _get_generation_suffix(self, role: Role, ctx: RenderContext) -> list[int]:
        header = [Markup(self._separator(ctx) + self._header(role, Message(role=role, content="")))]
        style = self.family.reasoning
        if role != "assistant" or style is None or not style.prompt:
            return self._encoder.encode(header)
        return self._encoder.encode([*header, Break(), Markup(style.prompt)])

    # Tokens to messages

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        stops = self.get_stop_sequences()
        stop = next((token for token in response if token in stops), stops[0])
        message, termination = parse_response_for_stop_token(response, self.tokenizer, stop)
        if not termination.is_clean:
            return message, termination
        return self.parse_text(str(message["content"])), termination

    def parse_text(self, text: str) -> Message:
        """Sampled text without its stop marker as a message."""
        reasoning: str | None = None
        style = self.family.reasoning
        if style is not None:
            reasoning, text = split_thinking(text)
            if style.closing.startswith("\n"):
                reasoning = reasoning.strip("\n") if reasoning is not None else None
                text = text.lstrip("\n") if reasoning is not None else text
        calls: list[ToolCall | UnparsedToolCall] = []
        if self.family.tools is not None:
            text, calls = self.family.tools.parse(text)
        content: str | list[ContentPart] = text
        if reasoning and reasoning.strip():
            content = [ThinkingPart(type="thinking", thinking=reasoning)]
            if text or not calls:
                content.append(TextPart(type="text", text=text))
        message = Message(role="assistant", content=content)
        parsed = [call for call in calls if isinstance(call, ToolCall)]
        unparsed = [call for call in calls if isinstance(call, UnparsedToolCall)]
        if parsed:
            message["tool_calls"] = parsed
        if unparsed:
            message["unparsed_tool_calls"] = unparsed
        return message

    def streaming_parser(self) -> StreamingParser:
        stop = self.get_stop_sequences()[0]
        style = self.family.reasoning
        if style is None:
            return super().streaming_parser()
        return ReasoningStreamingParser(
            self.tokenizer,
            stop,
            lambda tokens: self.parse_response(tokens)[0],
            starts_in_thinking=style.prompt.strip() == "<think>",
            trim=style.closing.startswith("\n"),
        )

    def create_conversation_prefix_with_tools(self, tools: list[ToolSpec], system_prompt: str = "") -> list[Message]:
        if self.family.tools is None:
            return super().create_conversation_prefix_with_tools(tools, system_prompt)
        return self.family.tools.declare(tools, system_prompt)
