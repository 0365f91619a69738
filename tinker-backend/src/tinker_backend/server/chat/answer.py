"""One answer of a model as it grows: tokens in, text and tool calls out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from .conversation import ToolCall
from .detokenizer import Detokenizer, StopFilter
from .tokenizer import ChatTokenizer
from .tool_calls import Part, ToolCallParser, ToolStyle

Finish = Literal["stop", "length", "stop_sequence", "tool_calls"]


class Answer:
    """Reads the tokens of one sampled sequence.

    ``style`` None: there are no tools, so everything is text. ``opened`` is the beginning of a tool call that the
    prompt already holds.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, stops: Iterable[str], style: ToolStyle | None, opened: str = ""
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, () if style is None else (style.start, style.end or style.start))
        self._stop = StopFilter(stops)
        self._parser = None if style is None else ToolCallParser(style)
        self.tokens: list[int] = []
        self.text = ""
        self.calls: list[ToolCall] = []
        if opened:
            self._take(opened)

    def feed(self, tokens: list[int]) -> list[Part]:
        """Text and calls that ``tokens`` complete."""
        self.tokens += tokens
        return self._take(self._stop.feed(self._detokenizer.feed(tokens)))

    def finish(self, stop_reason: Literal["stop", "length"]) -> tuple[list[Part], Finish]:
        """What is left, and why the answer ended."""
        text = self._stop.feed(self._detokenizer.finish()) + self._stop.finish()
        parts = self._take(text)
        if self._parser is not None:
            parts += self._keep(self._parser.finish())
        if self.calls:
            return parts, "tool_calls"
        if self._stop.found is not None:
            return parts, "stop_sequence"
        return parts, stop_reason

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stop.found

    def _take(self, text: str) -> list[Part]:
        if self._parser is not None:
            return self._keep(self._parser.feed(text))
        return self._keep([text] if text else [])

    def _keep(self, parts: list[Part]) -> list[Part]:
        for part in parts:
            if isinstance(part, str):
                self.text += part
            else:
                self.calls.append(part)
        return parts
