"""The renderer interface: conversations to tokens with loss weights, sampled tokens back to messages.

A family says how one message looks (``render_message``); prompts, training examples, stop conditions and weights
follow from that here.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import tinker
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import messages as message_module
from tinker_cookbook.renderers.images import ImageProcessorProtocol, image_to_chunk
from tinker_cookbook.renderers.messages import (
    AudioPart,
    Content,
    ContentPart,
    ImagePart,
    Message,
    Role,
    StrictBase,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolSpec,
    UnparsedToolCall,
    content_to_jsonable,
    ensure_list,
    ensure_text,
    format_content_as_string,
    get_text_content,
    has_thinking,
    message_to_jsonable,
    remove_thinking,
)
from tinker_cookbook.renderers.parsing import (
    PARSE_FAILURE_DETAIL_MAX_CHARS,
    UNTERMINATED_TOOL_BLOCK_ERROR,
    ParseFailureKind,
    ParseTermination,
    classify_parse_failure,
    detect_unterminated_tool_block,
    parse_content_blocks,
    parse_response_for_stop_token,
    parse_think_blocks,
)
from tinker_cookbook.renderers.streaming import (
    MessageDelta,
    ReasoningStreamingParser,
    StreamingMessageHeader,
    StreamingParser,
    StreamingTextDelta,
    StreamingThinkingDelta,
    Utf8TokenDecoder,
)
from tinker_cookbook.tokenizer_utils import Tokenizer, encode_without_special_tokens

if TYPE_CHECKING:
    import torch

# Everything that a renderer of one's own may need can be imported from here.
__all__ = [
    "PARSE_FAILURE_DETAIL_MAX_CHARS",
    "UNTERMINATED_TOOL_BLOCK_ERROR",
    "AudioPart",
    "Content",
    "ContentPart",
    "ImagePart",
    "ImageProcessorProtocol",
    "Message",
    "MessageDelta",
    "ParseFailureKind",
    "ParseTermination",
    "ReasoningStreamingParser",
    "RenderContext",
    "RenderedMessage",
    "Renderer",
    "Role",
    "StreamingMessageHeader",
    "StreamingParser",
    "StreamingTextDelta",
    "StreamingThinkingDelta",
    "StrictBase",
    "TextPart",
    "ThinkingPart",
    "ToolCall",
    "ToolSpec",
    "TrainOnWhat",
    "UnparsedToolCall",
    "Utf8TokenDecoder",
    "classify_parse_failure",
    "content_to_jsonable",
    "detect_unterminated_tool_block",
    "ensure_list",
    "ensure_text",
    "format_content_as_string",
    "get_text_content",
    "has_thinking",
    "image_to_chunk",
    "message_to_jsonable",
    "parse_content_blocks",
    "parse_response_for_stop_token",
    "parse_think_blocks",
    "remove_thinking",
    "text_chunk",
    "tokens_weights_from_strings_weights",
]

logger = logging.getLogger(__name__)

Chunk: TypeAlias = tinker.types.ModelInputChunk


class TrainOnWhat(StrEnum):
    """Which tokens of a conversation carry loss."""

    LAST_ASSISTANT_MESSAGE = "last_assistant_message"
    LAST_ASSISTANT_TURN = "last_assistant_turn"
    ALL_ASSISTANT_MESSAGES = "all_assistant_messages"
    ALL_MESSAGES = "all_messages"
    ALL_TOKENS = "all_tokens"
    ALL_USER_AND_SYSTEM_MESSAGES = "all_user_and_system_messages"
    CUSTOMIZED = "customized"


@dataclass(frozen=True)
class RenderContext:
    """Where a message stands in its conversation.

    ``last_user_index`` is -1 without a user message. ``in_last_assistant_turn``: it comes after the last user message.
    """

    idx: int
    is_last: bool
    prev_message: Message | None = None
    next_message: Message | None = None
    last_user_index: int = -1
    in_last_assistant_turn: bool = False


@dataclass
class RenderedMessage:
    """A message as chunks: ``header`` (never sampled), ``output`` (what the author of the message wrote), and
    ``stop_overlap`` (the part of the stop sequence that belongs to the next message's header)."""

    output: list[Chunk]
    header: tinker.EncodedTextChunk | None = None
    stop_overlap: tinker.EncodedTextChunk | None = None


@dataclass
class _Weighted:
    """Chunks with one weight per token."""

    chunks: list[Chunk] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def add(self, chunk: Chunk | None, weight: float) -> None:
        if chunk is None or chunk.length == 0:
            return
        self.chunks.append(chunk)
        self.weights.extend([weight] * chunk.length)


def text_chunk(tokens: Iterable[int]) -> tinker.EncodedTextChunk:
    """Tokens as a chunk."""
    return tinker.EncodedTextChunk(tokens=list(tokens))


def tokens_weights_from_strings_weights(
    strings_weights: Sequence[tuple[str, float]], tokenizer: Tokenizer
) -> tuple[list[int], list[float]]:
    """Tokens of texts that are encoded one by one, and the weight of its text for each of them."""
    tokens: list[int] = []
    weights: list[float] = []
    for text, weight in strings_weights:
        new = list(tokenizer.encode(text, add_special_tokens=False))
        tokens += new
        weights += [weight] * len(new)
    return tokens, weights


class Renderer(abc.ABC):
    """Conversations to tokens and back, for one model family.

    ``disables_thinking``: its prompt closes the reasoning block, so turns with reasoning cannot be trained.
    ``supports_streaming``: ``parse_response_streaming`` works.
    """

    tokenizer: Tokenizer
    disables_thinking: bool = False
    supports_streaming: bool = True
    # Set by get_renderer; what pickling needs.
    _renderer_name: str | None = None
    _model_name: str | None = None
    _has_image_processor: bool = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._renderer_name is None:
            return super().__reduce__()
        from tinker_cookbook.renderers import renderer_from_key

        model_name = self._model_name or self.tokenizer.name_or_path
        return renderer_from_key, (self._renderer_name, model_name, self._has_image_processor)

    # What a family defines

    @abc.abstractmethod
    def get_stop_sequences(self) -> list[str] | list[int]:
        """Stop condition for sampling: token ids or strings."""

    @abc.abstractmethod
    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        """One message as chunks."""

    @abc.abstractmethod
    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        """Sampled tokens as an assistant message, and how they ended."""

    @property
    def has_extension_property(self) -> bool:
        """Whether the prompt of turn t+1 starts with the tokens of turn t (history is rendered as it was sampled)."""
        return False

    @property
    def _bos_tokens(self) -> list[int]:
        return []

    def _prepare(self, messages: Sequence[Message], generating: bool = False) -> list[Message]:
        """Hook: messages that the family adds or rewrites before rendering; ``generating``: before a prompt."""
        return list(messages)

    def _last_user(self, messages: Sequence[Message]) -> int:
        """Hook: index of the last user message, -1 without one."""
        return max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)

    def _turn_start(self, messages: Sequence[Message], generating: bool = False) -> int:
        """Hook: index of the last message before the last turn of the assistant."""
        return _turn_begin(messages) - 1

    def _get_generation_suffix(self, role: Role, ctx: RenderContext) -> list[int]:
        """Tokens that make the model begin a message of this role: the header of an empty message by default."""
        header = self.render_message(Message(role=role, content=""), ctx).header
        return list(header.tokens) if header else []

    def streaming_parser(self) -> StreamingParser:
        """A parser for one response that comes token by token."""
        stops = self.get_stop_sequences()
        end = stops[0] if stops and isinstance(stops[0], int) else None
        return StreamingParser(self.tokenizer, end, lambda tokens: self.parse_response(tokens)[0])

    def parse_response_streaming(self, response: Iterable[int]) -> Iterator[MessageDelta]:
        """Header, text and reasoning deltas, and at last the whole message."""
        parser = self.streaming_parser()
        for token in response:
            yield from parser.feed(token)
        yield from parser.finish()

    def to_openai_message(self, message: Message) -> dict[str, Any]:
        """Message in the form of the OpenAI chat API."""
        return message_module.to_openai_message(message)

    def create_conversation_prefix_with_tools(self, tools: list[ToolSpec], system_prompt: str = "") -> list[Message]:
        """First messages of a conversation in which the model may call these tools.

        Raises:
            RendererError: the family has no tool format.
        """
        raise RendererError(f"{type(self).__name__} has no tool format; use a renderer of a family that has one")

    # What follows from it

    def _contexts(self, messages: Sequence[Message], generating: bool = False) -> list[RenderContext]:
        last_user, turn_start = self._last_user(messages), self._turn_start(messages, generating)
        return [
            RenderContext(
                idx=i,
                is_last=i == len(messages) - 1,
                prev_message=messages[i - 1] if i else None,
                next_message=messages[i + 1] if i + 1 < len(messages) else None,
                last_user_index=last_user,
                in_last_assistant_turn=i > turn_start,
            )
            for i in range(len(messages))
        ]

    def _suffix_context(self, messages: Sequence[Message]) -> RenderContext:
        return RenderContext(
            idx=len(messages),
            is_last=True,
            prev_message=messages[-1] if messages else None,
            last_user_index=self._last_user(messages),
            in_last_assistant_turn=True,
        )

    def build_generation_prompt(
        self, messages: list[Message], role: Role = "assistant", prefill: str | None = None
    ) -> tinker.ModelInput:
        """Prompt after which the model writes the next message of ``role``; ``prefill`` is its beginning."""
        prepared = self._prepare(messages, generating=True)
        contexts = self._contexts(prepared, generating=True)
        out = _Weighted()
        out.add(text_chunk(self._bos_tokens), 0.0)
        for message, ctx in zip(prepared, contexts, strict=True):
            rendered = self.render_message(message, ctx)
            out.add(rendered.header, 0.0)
            for chunk in rendered.output:
                out.add(chunk, 0.0)
        out.add(text_chunk(self._get_generation_suffix(role, self._suffix_context(prepared))), 0.0)
        if prefill:
            out.add(text_chunk(encode_without_special_tokens(self.tokenizer, prefill)), 0.0)
        return tinker.ModelInput(chunks=out.chunks)

    def build_supervised_example(
        self, messages: list[Message], train_on_what: TrainOnWhat = TrainOnWhat.LAST_ASSISTANT_MESSAGE
    ) -> tuple[tinker.ModelInput, torch.Tensor]:
        """Tokens of a conversation and one 0/1 weight for each of them.

        Raises:
            RendererError: the conversation does not fit the family or ``train_on_what``.
        """
        train_on_what = TrainOnWhat(train_on_what)
        self._check_trainable(messages, train_on_what)
        if train_on_what is TrainOnWhat.ALL_ASSISTANT_MESSAGES and not self.has_extension_property:
            _warn_once(type(self).__name__)
        prepared = self._prepare(messages)
        out = _Weighted()
        out.add(text_chunk(self._bos_tokens), 0.0)
        for message, ctx in zip(prepared, self._contexts(prepared), strict=True):
            trained = float(_is_trained(message, ctx, train_on_what))
            rendered = self.render_message(message, ctx)
            out.add(rendered.header, 1.0 if train_on_what is TrainOnWhat.ALL_TOKENS else 0.0)
            for chunk in rendered.output:
                out.add(chunk, trained)
            if ctx.is_last:
                out.add(rendered.stop_overlap, trained)
        if train_on_what in (TrainOnWhat.LAST_ASSISTANT_MESSAGE, TrainOnWhat.LAST_ASSISTANT_TURN):
            whole_turn = train_on_what is TrainOnWhat.LAST_ASSISTANT_TURN
            self._leave_out_prompt(
                out, messages, _turn_begin(messages) if whole_turn else len(messages) - 1, whole_turn
            )
        import torch

        return tinker.ModelInput(chunks=out.chunks), torch.tensor(out.weights, dtype=torch.float32)

    def _leave_out_prompt(self, out: _Weighted, messages: list[Message], begin: int, whole_turn: bool) -> None:
        """Take the weight off tokens which the generation prompt before message ``begin`` would already contain."""
        answers = [message for message in messages[begin:] if message["role"] == "assistant"]
        if not answers:
            return
        if self.disables_thinking and any(has_thinking(message["content"]) for message in answers):
            raise RendererError(
                f"{type(self).__name__}: message {begin} or a later one contains reasoning, but the prompt of this "
                "renderer closes the reasoning block. Remove the thinking parts or use a thinking renderer."
            )
        if whole_turn and not begin:
            return  # no user message: the turn is the conversation
        prompt, example = _flat(self.build_generation_prompt(messages[:begin]).chunks), _flat(out.chunks)
        if example[: len(prompt)] == prompt:
            out.weights[: len(prompt)] = [0.0] * len(prompt)
        elif self.disables_thinking and not whole_turn:
            raise RendererError(
                f"{type(self).__name__}: the prompt before message {begin} does not begin this example, because the "
                "message is not written with the closed reasoning block of the prompt. Use a thinking renderer."
            )

    def build_supervised_examples(
        self, messages: list[Message], train_on_what: TrainOnWhat = TrainOnWhat.LAST_ASSISTANT_TURN
    ) -> list[tuple[tinker.ModelInput, torch.Tensor]]:
        """Like ``build_supervised_example``; where history is not rendered as it was sampled, training a turn or all
        assistant messages gives one example for each of them."""
        train_on_what = TrainOnWhat(train_on_what)
        turn = train_on_what is TrainOnWhat.LAST_ASSISTANT_TURN
        if self.has_extension_property or not (turn or train_on_what is TrainOnWhat.ALL_ASSISTANT_MESSAGES):
            return [self.build_supervised_example(messages, train_on_what)]
        first = _turn_begin(messages) if turn else 0
        return [
            self.build_supervised_example(messages[: i + 1], TrainOnWhat.LAST_ASSISTANT_MESSAGE)
            for i, message in enumerate(messages)
            if i >= first and message["role"] == "assistant"
        ]

    def _check_trainable(self, messages: Sequence[Message], train_on_what: TrainOnWhat) -> None:
        customized = train_on_what is TrainOnWhat.CUSTOMIZED
        for index, message in enumerate(messages):
            if ("trainable" in message) != customized:
                raise RendererError(
                    f"message {index}: train_on_what={train_on_what.value!r} "
                    + ("needs the field 'trainable' in every message" if customized else "allows no field 'trainable'")
                )


def _is_trained(message: Message, ctx: RenderContext, mode: TrainOnWhat) -> bool:
    role = message["role"]
    match mode:
        case TrainOnWhat.LAST_ASSISTANT_MESSAGE:
            return ctx.is_last and role == "assistant"
        case TrainOnWhat.LAST_ASSISTANT_TURN:
            return ctx.in_last_assistant_turn and role == "assistant"
        case TrainOnWhat.ALL_ASSISTANT_MESSAGES:
            return role == "assistant"
        case TrainOnWhat.ALL_USER_AND_SYSTEM_MESSAGES:
            return role in ("user", "system")
        case TrainOnWhat.CUSTOMIZED:
            return bool(message.get("trainable", False))
        case _:
            return True


def _turn_begin(messages: Sequence[Message]) -> int:
    """Index of the first message after the last user message that an assistant message follows."""
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    return 1 + max((i for i, message in enumerate(messages[:last]) if message["role"] == "user"), default=-1)


def _flat(chunks: Sequence[Chunk]) -> list[Any]:
    """One entry per token; tokens of a medium are equal when it is."""
    out: list[Any] = []
    for chunk in chunks:
        out += chunk.tokens if isinstance(chunk, tinker.EncodedTextChunk) else [chunk] * chunk.length
    return out


_warned: set[str] = set()


def _warn_once(renderer: str) -> None:
    if renderer not in _warned:
        _warned.add(renderer)
        logger.warning(
            "%s drops reasoning from history: with all_assistant_messages the earlier turns are trained in a form that "
            "differs from sampling. build_supervised_examples gives one exact example per assistant message.",
            renderer,
        )
