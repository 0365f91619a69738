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


@dataclass
class Utf8TokenDecoder:
    """Decodes tokens as they come and holds back the bytes of an unfinished character."""

    tokenizer: Tokenizer
    _pending: list[int] = field(default_factory=list)

    def decode(self, tokens: list[int]) -> str | None:
        """Text that became complete with these tokens; None while a character is unfinished."""
        self._pending.extend(tokens)
        text = str(self.tokenizer.decode(self._pending))
        if text.endswith("\ufffd"):
            return None
        self._pending.clear()
        return text

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

    ``end_message_token`` is one stop token or None (then the stream ends with ``finish``).
    """

    tokenizer: Tokenizer
    end_message_token: int | None
    parse_final_response: Callable[[list[int]], Message]
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
        if token == self.end_message_token:
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
    """Splits reasoning between ``opening`` and ``closing`` from text while it streams.

    ``starts_in_thinking``: the prompt already opened the block. ``trim``: newlines around a block belong to its
    markers and are not shown.
    """

    opening: str = "<think>"
    closing: str = "</think>"
    starts_in_thinking: bool = False
    trim: bool = True

    def _restart(self) -> None:
        self._buffer = ""
        self._thinking = self.starts_in_thinking
        self._index = 0
        self._at_start = True
        self._shown = False

    def _text(self, text: str, last: bool) -> Iterator[MessageDelta]:
        self._buffer += text
        while True:
            marker = self.closing if self._thinking else self.opening
            before, found, after = self._buffer.partition(marker)
            if not found:
                break
            yield from self._emit(before.rstrip("\n") if self._thinking and self.trim else before)
            self._buffer = after
            self._index += 1 if self._shown else 0
            self._thinking = not self._thinking
            self._at_start, self._shown = True, False
        keep = 0 if last else _held_back(self._buffer, marker, self._thinking and self.trim)
        ready, self._buffer = self._buffer[: len(self._buffer) - keep], self._buffer[len(self._buffer) - keep :]
        yield from self._emit(ready)

    def _emit(self, text: str) -> Iterator[MessageDelta]:
        if self._at_start and self.trim:
            text = text.lstrip("\n")
        if not text:
            return
        self._at_start, self._shown = False, True
        if self._thinking:
            yield StreamingThinkingDelta(text, self._index)
        else:
            yield StreamingTextDelta(text, self._index)


def _held_back(text: str, marker: str, thinking: bool) -> int:
    """How many trailing characters may still turn out to be (or to precede) the marker."""
    keep = 0
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            keep = size
            break
    if thinking:  # newlines before the closing marker belong to the marker
        body = text[: len(text) - keep]
        keep += len(body) - len(body.rstrip("\n"))
    return keep
