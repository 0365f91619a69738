"""Draws a conversation from the table in ``families``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import tinker
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import Chunk, RenderContext, RenderedMessage, Renderer, TrainOnWhat, text_chunk
from tinker_cookbook.renderers.conversation import last_user, prepare, turn_start
from tinker_cookbook.renderers.families import NOTHING, Block, Family, Reasoning
from tinker_cookbook.renderers.images import image_to_chunk
from tinker_cookbook.renderers.messages import (
    ContentPart,
    Message,
    Role,
    TextPart,
    ThinkingPart,
    ToolSpec,
    ensure_list,
    ensure_text,
    get_text_content,
    remove_thinking,
    to_openai_message,
)
from tinker_cookbook.renderers.parsing import ParseTermination, without_think_blocks
from tinker_cookbook.renderers.pieces import Break, Markup, Piece, PieceEncoder
from tinker_cookbook.renderers.reading import opened, parse_text, parse_tokens
from tinker_cookbook.renderers.streaming import MessageDelta, ReasoningStreamingParser, StreamingParser
from tinker_cookbook.tokenizer_utils import Tokenizer

if TYPE_CHECKING:
    import torch


class TemplateRenderer(Renderer):
    """A family of ``families.FAMILIES`` with one tokenizer.

    ``merge_text_chunks``: text parts side by side are encoded as one text.
    """

    image_processor: Any | None
    merge_text_chunks: bool = True

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

    def _prepare(self, messages: Sequence[Message], generating: bool = False) -> list[Message]:
        return prepare(self.family, messages, generating)

    def _turn_start(self, messages: Sequence[Message], generating: bool = False) -> int:
        return turn_start(self.family, messages, generating)

    def _last_user(self, messages: Sequence[Message]) -> int:
        return last_user(self.family, messages)

    # Messages to tokens

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        role = message["role"]
        header = self._header(message, ctx)
        if role == "tool" and self.family.tools is not None and self.family.joins_turns is None:
            return self._render_result(header, message, ctx)
        if role != "assistant":
            parts = self._stripped(message)
            if any(part["type"] == "thinking" for part in parts):
                ensure_text(message["content"])  # raises: only the assistant reasons
            return self._rendered(header, [], parts, [Markup(self._end(role))])
        in_header, body, parts = self._reasoned(message, ctx)
        if in_header and header:
            header += [Break(), Markup(in_header)]
        tail: list[Piece] = []
        if calls := message.get("tool_calls"):
            if self.family.tools is None:
                raise RendererError(f"message {ctx.idx}: this renderer has no form for tool_calls")
            written = "".join(_plain(self.family.reasoning, part) for part in parts)
            if not written and self.family.strip == "nothing":
                written = get_text_content(message)
            tail = self.family.tools.calls(calls, written)
        rendered = self._rendered(
            header, body, parts, [*tail, Markup(self._end(role) + self._shared_end(message, ctx.next_message))]
        )
        if self.family.shared_ends is not None and ctx.is_last:
            marker = self.family.shared_ends["tool" if calls else "user"]
            rendered.stop_overlap = text_chunk(self._encoder.encode([Markup(marker)]))
        return rendered

    def _rendered(
        self, header: list[Piece], body: list[Piece], parts: list[ContentPart], tail: list[Piece]
    ) -> RenderedMessage:
        style, output = self.family.reasoning, list[Chunk]()
        pieces: list[Piece] = list(body)
        for part in parts:
            if part["type"] == "text":
                pieces += [part["text"]] if self.merge_text_chunks else [Break(), part["text"], Break()]
            elif part["type"] == "thinking" and style is not None:
                # What the prompt already holds when sampling is encoded apart from what follows.
                first = not pieces and not output and bool(style.prompt)
                pieces += [Markup(style.opening), *([Break()] if first else []), part["thinking"]]
                pieces.append(Markup(style.closing))
            elif part["type"] == "image" and self.family.vision is not None:
                opening, closing = self.family.vision
                output.append(text_chunk(self._encoder.encode([*pieces, Markup(opening)])))
                output.append(image_to_chunk(part["image"], self.image_processor))
                pieces = [Markup(closing)]
            else:
                raise RendererError(f"content part of type {part['type']!r} has no form in this renderer")
        output.append(text_chunk(self._encoder.encode([*pieces, *tail])))
        return RenderedMessage(header=text_chunk(self._encoder.encode(header)), output=output)

    def _reasoned(self, message: Message, ctx: RenderContext) -> tuple[str, list[Piece], list[ContentPart]]:
        """What reasoning adds to the header, what stands before the content, and the content that is written."""
        parts, style = self._stripped(message), self.family.reasoning
        if style is None:
            if any(part["type"] == "thinking" for part in parts):
                ensure_text(message["content"])  # raises: the family has no form for reasoning
            return "", [], parts
        given = any(part["type"] == "thinking" for part in parts)
        if style.in_strings and isinstance(message["content"], str):
            given = given or style.opening.strip() in message["content"]
        bare = self._is_bare(ctx)
        keeps = _keeps(style, message, ctx, bare)
        rest = remove_thinking(parts)
        if style.first:
            return self._reasoned_first(style, "".join(_thinking(part) for part in parts), rest, keeps, bare)
        if given and keeps:
            parts = _trimmed(parts) if style.trim else parts
            return "" if ctx.is_last or bare else style.before_kept, [], parts
        if style.keep == "never" and not bare:
            rest = [_without_blocks(part) for part in rest] if isinstance(message["content"], str) else rest
        block = style.absent[0 if ctx.is_last else 1 if ctx.idx > ctx.last_user_index else 2]
        if bare or (style.needs_user and ctx.last_user_index < 0):
            block = NOTHING
        if any(part["type"] == "thinking" for part in parts):
            block = block if style.dropped is None else style.dropped
            if get_text_content(message) and not message.get("tool_calls"):
                block = (block[0] + style.dropped_break, block[1])
        if style.trim and block[1]:
            rest = _trimmed([ThinkingPart(type="thinking", thinking=""), *rest])[1:]
        body: list[Piece] = [Markup(block[1])] if block[1] else []
        if block[1] and (block[0] or block[1] == style.prompt):
            body.append(Break())
        return block[0], body, rest

    def _reasoned_first(
        self, style: Reasoning, thinking: str, rest: list[ContentPart], keeps: bool, bare: bool
    ) -> tuple[str, list[Piece], list[ContentPart]]:
        if not keeps:
            block: Block = style.dropped or NOTHING
            return block[0], [Markup(block[1])], rest
        if style.opening_in_header:
            return style.opening, [thinking, Markup(style.closing)], rest
        if self.family.refuses_reasoning and not thinking:
            return "", [Markup(style.opening + style.closing), Break()], rest
        return "", [Markup(style.opening), *([Break()] if style.prompt else []), thinking, Markup(style.closing)], rest

    def _render_result(self, header: list[Piece], message: Message, ctx: RenderContext) -> RenderedMessage:
        tools = self.family.tools
        assert tools is not None
        joiner = tools.result_joiner
        first = joiner is None or ctx.prev_message is None or ctx.prev_message["role"] != "tool"
        last = joiner is None or ctx.next_message is None or ctx.next_message["role"] != "tool"
        tail = Markup(tools.result_closing + (self._end(message["role"]) if last else ""))
        opening: list[Piece] = header if first else [Markup(joiner or "")]
        return self._rendered(opening, [Markup(tools.result_opening)], self._stripped(message), [tail])

    def _header(self, message: Message, ctx: RenderContext) -> list[Piece]:
        """Header of a message; empty where the messages before it leave it out."""
        role, family, after = message["role"], self.family, ""
        before = ctx.prev_message["role"] if ctx.prev_message is not None else None
        if role == "assistant" and self._is_bare(ctx):
            return []
        if ctx.prev_message is not None and self._shared_end(ctx.prev_message, message):
            return []
        if family.joins_turns is not None and role != "system":
            if before == role or (before in ("user", "tool") and role in ("user", "tool")):
                return []
            if role == "assistant" and (before is None or (before == "system" and ctx.idx == 1)):
                return []
        if role == "tool" and family.tools is not None:
            role, after = family.tools.result_header(message) or (family.tools.result_role, "")
        if role not in family.headers and "*" not in family.headers:
            known = ", ".join(family.headers)
            raise RendererError(f"message {ctx.idx}: role {role!r} has no form in this renderer; it knows {known}")
        if role == "system" and ctx.idx and family.one_system:
            raise RendererError(f"message {ctx.idx}: this renderer takes a system message at the start only")
        template = family.headers.get(role, family.headers.get("*", ""))
        if role == "system" and ctx.idx == 0 and family.first_system is not None:
            template = family.first_system
        opening, named, closing = template.partition("{role}")
        pieces: list[Piece] = [Markup((family.separator if ctx.idx else "") + opening)]
        if named:
            pieces += [role, Markup(closing)]
        return [*pieces, after]

    def _is_bare(self, ctx: RenderContext) -> bool:
        before = ctx.prev_message
        return self.family.bare_after_results and before is not None and before["role"] == "tool"

    def _stripped(self, message: Message) -> list[ContentPart]:
        content, mode = message["content"], self.family.strip
        parts = ensure_list(content)
        if mode == "strings" and isinstance(content, str) or mode == "assistant" and message["role"] == "assistant":
            return _strip_runs(parts, self.merge_text_chunks)
        return _strip_runs(parts, self.merge_text_chunks) if mode == "everything" else parts

    def _end(self, role: Role) -> str:
        return self.family.ends.get(role, self.family.ends["*"])

    def _shared_end(self, message: Message, following: Message | None) -> str:
        """The marker of the next message, where it is what an assistant message stops with."""
        if self.family.shared_ends is None or following is None or message["role"] != "assistant":
            return ""
        expected = "tool" if message.get("tool_calls") else "user"
        return self.family.shared_ends[expected] if following["role"] == expected else ""

    def _get_generation_suffix(self, role: Role, ctx: RenderContext) -> list[int]:
        header = self._header(Message(role=role, content=""), ctx)
        style = self.family.reasoning
        prompted = role == "assistant" or (style is not None and not style.first or self.family.turns == "answer")
        prompted = prompted and (role == "assistant" or style is None or style.keep != "never")
        if style is None or not style.prompt or not header or not prompted or self._is_bare(ctx):
            return self._encoder.encode(header)
        return self._encoder.encode([*header, Break(), Markup(style.prompt)])

    def build_supervised_examples(
        self, messages: list[Message], train_on_what: TrainOnWhat = TrainOnWhat.LAST_ASSISTANT_TURN
    ) -> list[tuple[tinker.ModelInput, torch.Tensor]]:
        """Like the one of every renderer; families whose turns end with an answer give one example per turn."""
        if self.family.turns != "answer":
            return super().build_supervised_examples(messages, train_on_what)
        if train_on_what is not TrainOnWhat.ALL_ASSISTANT_MESSAGES:
            return [self.build_supervised_example(messages, train_on_what)]
        users = [index for index, message in enumerate(messages) if message["role"] == "user"]
        turns = [messages[:end] for end in [*users[1:], len(messages)]]
        return [
            self.build_supervised_example(turn, TrainOnWhat.LAST_ASSISTANT_TURN)
            for turn, user in zip(turns, users or [0], strict=True)
            if any(message["role"] == "assistant" for message in turn[user:])
        ]

    # Tokens to messages

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        return parse_tokens(self.family, response, self.tokenizer, self.get_stop_sequences())

    def _parse_streamed(self, tokens: list[int]) -> Message:
        stops = self.get_stop_sequences()
        end = next((index for index, token in enumerate(tokens) if token in stops), len(tokens))
        return parse_text(self.family, str(self.tokenizer.decode(tokens[:end])))

    def streaming_parser(self) -> StreamingParser:
        stops, parsing = self.get_stop_sequences(), self.family.parsing
        if not parsing.reasons:
            return StreamingParser(self.tokenizer, stops[0], self._parse_streamed)
        return ReasoningStreamingParser(
            self.tokenizer,
            stops[0],
            self._parse_streamed,
            other_stops=tuple(stops[1:]),
            starts_in_thinking=bool(parsing.prefix) and not self.family.refuses_reasoning,
        )

    def parse_response_streaming(self, response: Iterable[int]) -> Iterator[MessageDelta]:
        """Deltas and at last the message. Of a whole response it is known whether it closes a block of the prompt."""
        parser = self.streaming_parser()
        if isinstance(response, Sequence) and isinstance(parser, ReasoningStreamingParser):
            text = str(self.tokenizer.decode(list(response)))
            given = opened(self.family.parsing, text).removesuffix(text)
            parser.begin(given)
        for token in response:
            yield from parser.feed(token)
        yield from parser.finish()

    def to_openai_message(self, message: Message) -> dict[str, Any]:
        tools = self.family.tools
        return to_openai_message(message, argument_objects=tools is not None and tools.argument_objects)

    def create_conversation_prefix_with_tools(self, tools: list[ToolSpec], system_prompt: str = "") -> list[Message]:
        if self.family.tools is None:
            return super().create_conversation_prefix_with_tools(tools, system_prompt)
        return self.family.tools.declare(tools, system_prompt)


def _keeps(style: Reasoning, message: Message, ctx: RenderContext, bare: bool) -> bool:
    """Whether the reasoning of this message is written. Where no header can close it, it is written like a call's."""
    match "last_or_calls" if bare and style.keep == "never" else style.keep:
        case "last":
            return ctx.is_last
        case "last_or_calls":
            return ctx.is_last or bool(message.get("tool_calls"))
        case "turn":
            return ctx.idx > ctx.last_user_index or style.forgotten
        case "always":
            return True
        case _:
            return False


def _strip_runs(parts: list[ContentPart], merge: bool) -> list[ContentPart]:
    """Parts without white space around their text, except between text and an image; texts side by side become one
    if they are merged."""
    out: list[ContentPart] = []
    runs = [(kind, list(run)) for kind, run in groupby(parts, lambda part: part["type"])]
    for index, (kind, run) in enumerate(runs):
        if kind != "text":
            out += run
            continue
        texts = [part["text"] for part in run if part["type"] == "text"]
        texts = ["".join(texts)] if merge else texts
        before, after = runs[index - 1][0] if index else None, runs[index + 1][0] if index + 1 < len(runs) else None
        texts[0] = texts[0] if before == "image" else texts[0].lstrip()
        texts[-1] = texts[-1] if after == "image" else texts[-1].rstrip()
        out += [TextPart(type="text", text=text) for text in texts]
    return out


def _trimmed(parts: list[ContentPart]) -> list[ContentPart]:
    """Parts without the newlines that the markers of reasoning bring along."""
    out: list[ContentPart] = []
    for part in parts:
        if part["type"] == "thinking":
            part = ThinkingPart(type="thinking", thinking=part["thinking"].strip("\n"))
        elif part["type"] == "text" and out and out[-1]["type"] == "thinking":
            part = TextPart(type="text", text=part["text"].lstrip("\n"))
        out.append(part)
    return out


def _thinking(part: ContentPart) -> str:
    return part["thinking"] if part["type"] == "thinking" else ""


def _without_blocks(part: ContentPart) -> ContentPart:
    return TextPart(type="text", text=without_think_blocks(part["text"])) if part["type"] == "text" else part


def _plain(style: Reasoning | None, part: ContentPart) -> str:
    """A part as text, without regard to tokens."""
    if part["type"] == "thinking" and style is not None:
        return style.opening + part["thinking"] + style.closing
    return part["text"] if part["type"] == "text" else f"[{part['type']}]"
