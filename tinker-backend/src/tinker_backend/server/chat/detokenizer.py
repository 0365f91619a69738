"""Tokens to text, piece by piece: what comes out is always whole letters."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from .tokenizer import ChatTokenizer


class Detokenizer:
    """Text of a growing token sequence. Bytes of an unfinished letter wait for the rest; control tokens are silent,
    except those that the model's tool calls are written with."""

    def __init__(self, tokenizer: ChatTokenizer, audible: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._audible = {text.encode() for text in audible}
        self._letters = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, tokens: Iterable[int]) -> str:
        """The text that ``tokens`` complete."""
        return "".join(self._letters.decode(self._bytes(token)) for token in tokens)

    def finish(self) -> str:
        """What is left: U+FFFD for a letter that never was finished."""
        return self._letters.decode(b"", final=True)

    def _bytes(self, token: int) -> bytes:
        piece = self._tokenizer.token_bytes(token)
        return b"" if self._tokenizer.is_special(token) and piece not in self._audible else piece


class StopFilter:
    """Cuts a growing text before the first stop string. Text that may be the start of one is held back."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """What is certain after ``text``; nothing more once a stop was found."""
        if self.found is not None:
            return ""
        self._held += text
        hits = [(self._held.find(stop), stop) for stop in self._stops if stop in self._held]
        if hits:
            # The earliest start wins; of two at one place the longer.
            position, self.found = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
            certain, self._held = self._held[:position], ""
            return certain
        longest = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        certain = self._held[: len(self._held) - longest]
        self._held = self._held[len(certain) :]
        return certain

    def finish(self) -> str:
        """What was held back and turned out to be no stop."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop`` without being all of it."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
