"""Streaming: tokens one by one to message deltas, without ever showing half a character or half a marker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tinker_cookbook.renderers.messages import Message
from tinker_cookbook.tokenizer_utils import Tokenizer


@dataclass(frozen=True)
class StreamingMessageHeader:
    """Starts a message."""

    role: str
    name: str | None = None


@dataclass(frozen=True)
class StreamingTextDelta:
    """More text of content part ``content_index``."""

    text: str
    content_index: int = 0


@dataclass(frozen=True)
class StreamingThinkingDelta:
    """More reasoning of content part ``content_index``."""

    thinking: str
    content_index: int = 0


MessageDelta: TypeAlias = StreamingMessageHeader | StreamingTextDelta | StreamingThinkingDelta | Message


_UNFINISHED_TOKENS = 3
"""Tokens of an unfinished character at most: one for each byte but its last."""


@dataclass
class Utf8TokenDecoder:
    """Decodes tokens as they come and holds back the bytes of an unfinished character."""

    tokenizer: Tokenizer
    _pending: list[int] = field(default_factory=list)

    def decode(self, tokens: list[int]) -> str | None:
        """Text that became complete with these tokens, up to an unfinished character at the end; None without any."""
        self._pending.extend(tokens)
        for held_back in range(min(_UNFINISHED_TOKENS, len(self._pending) - 1) + 1):
            end = len(self._pending) - held_back
            text = self._complete(self._pending[:end])
            if text is not None:
                del self._pending[:end]
                return text
        return None

    def _complete(self, tokens: list[int]) -> str | None:
        try:
            text = str(self.tokenizer.decode(tokens))
        except ValueError:  # some tokenizers refuse what is no whole character
            return None
        return None if text.endswith("\ufffd") else text

    def flush(self) -> str:
        """Whatever is left, with replacement characters for broken bytes."""
        text = str(self.tokenizer.decode(self._pending)) if self._pending else ""
        self._pending.clear()
        return text

    def reset(self) -> None:
        """Forget held back tokens."""
        self._pending.clear()

    def has_pending(self) -> bool:
        """Whether tokens are held back."""
        return bool(self._pending)


@dataclass
class StreamingParser:
    """Feed tokens, get deltas; ``finish`` gives the same message as parsing the whole response at once.

    ``end_message_token`` is one stop token or None (then the stream ends with ``finish``); ``other_stops`` are more.
    """

    tokenizer: Tokenizer
    end_message_token: int | None
    parse_final_response: Callable[[list[int]], Message]
    other_stops: tuple[int, ...] = ()
    _tokens: list[int] = field(default_factory=list)
    _started: bool = False
    _ended: bool = False

    def __post_init__(self) -> None:
        self._decoder = Utf8TokenDecoder(self.tokenizer)
        self._restart()

    def feed(self, token: int) -> Iterator[MessageDelta]:
        """Deltas that this token completes. Tokens after the end of the message are kept for ``finish`` only."""
        self._tokens.append(token)
        if not self._started:
            self._started = True
            yield StreamingMessageHeader(role="assistant")
        if self._ended:
            return
        if token == self.end_message_token or token in self.other_stops:
            self._ended = True
            yield from self._drain()
            return
        text = self._decoder.decode([token])
        if text:
            yield from self._text(text, last=False)

    def finish(self) -> Iterator[MessageDelta]:
        """Last deltas, then the whole message."""
        if not self._started:
            self._started = True
            yield StreamingMessageHeader(role="assistant")
        if not self._ended:
            yield from self._drain()
        yield self.parse_final_response(self._tokens)

    def reset(self) -> None:
        """Ready for the next message."""
        self._tokens = []
        self._started = self._ended = False
        self._decoder.reset()
        self._restart()

    def _restart(self) -> None:
        """State of a family's own, as before the first token."""

    def _drain(self) -> Iterator[MessageDelta]:
        yield from self._text(self._decoder.flush(), last=True)

    def _text(self, text: str, last: bool) -> Iterator[MessageDelta]:
        if text:
            yield StreamingTextDelta(text)


@dataclass
class ReasoningStreamingParser(StreamingParser):
    """Splits reasoning between ``opening`` and ``closing`` from text while it streams; every marker begins a new
    content part. Deltas hold the text as it was sampled, without the markers.

    ``starts_in_thinking``: the prompt already opened the block.
    """

    opening: str = "<think>"
    closing: str = "</think>"
    starts_in_thinking: bool = False

    def begin(self, given: str) -> None:
        """Start over with text of the prompt that belongs to the message (an opening marker, or nothing)."""
        self.starts_in_thinking = False
        self.reset()
        self._buffer = given

    def _restart(self) -> None:
        self._buffer = self.opening if self.starts_in_thinking else ""
        self._thinking = False
        self._index = 0

    def _text(self, text: str, last: bool) -> Iterator[MessageDelta]:
        if self._buffer.startswith(self.opening) and not self._thinking and not self._index:
            # Text of the prompt comes as a delta of its own.
            given, self._buffer = self._buffer, ""
            yield from self._split(given, last=False)
        yield from self._split(text, last)

    def _split(self, text: str, last: bool) -> Iterator[MessageDelta]:
        self._buffer += text
        while True:
            marker = self.closing if self._thinking else self.opening
            before, found, after = self._buffer.partition(marker)
            if not found:
                break
            yield from self._emit(before)
            self._buffer = after
            self._index += 1
            self._thinking = not self._thinking
        keep = 0 if last else _held_back(self._buffer, marker)
        ready, self._buffer = self._buffer[: len(self._buffer) - keep], self._buffer[len(self._buffer) - keep :]
        yield from self._emit(ready)

    def _emit(self, text: str) -> Iterator[MessageDelta]:
        if text:
            yield (StreamingThinkingDelta if self._thinking else StreamingTextDelta)(text, self._index)


def _held_back(text: str, marker: str) -> int:
    """How many trailing characters may still turn out to be the marker."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)
