"""When a sampled sequence ends: stop ids, stop strings, length."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

_MARGIN = 8
"""Tokens decoded before the longest possible match, so that a cut character cannot disturb it."""


class StopRules:
    """Stop conditions of one request."""

    def __init__(
        self, stop_ids: Sequence[int], stop_strings: Sequence[str], max_tokens: int, tokenizer: Tokenizer | None
    ) -> None:
        self._ids = frozenset(stop_ids)
        self._strings = [s for s in stop_strings if s]
        self.max_tokens = max_tokens
        self._tokenizer = tokenizer
        # A token is at least one byte, so no match spans more tokens than its bytes.
        self._window = max((len(s.encode()) for s in self._strings), default=0) + _MARGIN

    def ends(self, tokens: Sequence[int]) -> str | None:
        """``stop`` or ``length`` when the sequence ends with its newest token, else None."""
        if tokens[-1] in self._ids:
            return "stop"
        if self._strings and self._tokenizer is not None:
            text = self._tokenizer.decode(list(tokens[-self._window :]), skip_special_tokens=False)
            if any(s in text for s in self._strings):
                return "stop"
        return "length" if len(tokens) >= self.max_tokens else None
