"""Streaming of harmony channels: analysis as reasoning, everything else as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tinker_cookbook.renderers.streaming import (
    MessageDelta,
    StreamingParser,
    StreamingTextDelta,
    StreamingThinkingDelta,
)

_MARKERS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|constrain|>")


@dataclass
class HarmonyStreamingParser(StreamingParser):
    """Relies on markers being single tokens, as they are in harmony tokenizers."""

    def _restart(self) -> None:
        self._header = ""
        self._in_body = False
        self._index = -1

    def _text(self, text: str, last: bool) -> Iterator[MessageDelta]:
        marker = next((m for m in _MARKERS if m in text), None)
        if marker is not None and text != marker:
            before, _, after = text.partition(marker)
            yield from self._text(before, last)
            yield from self._text(marker, last)
            yield from self._text(after, last)
            return
        if marker == "<|message|>":
            self._in_body = True
            self._index += 1
        elif marker in ("<|end|>", "<|call|>", "<|start|>"):
            self._in_body, self._header = False, ""
        elif not self._in_body:
            self._header += text
        elif text and "to=functions" not in self._header:
            if "analysis" in self._header:
                yield StreamingThinkingDelta(text, self._index)
            else:
                yield StreamingTextDelta(text, self._index)
