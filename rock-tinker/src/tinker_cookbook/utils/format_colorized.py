"""Tokens with colours by weight, for terminals."""

from __future__ import annotations

from collections.abc import Sequence

from tinker_cookbook.tokenizer_utils import Tokenizer

_GREEN, _YELLOW, _RED, _RESET = "\033[32m", "\033[33m", "\033[31m", "\033[0m"


def format_colorized(
    tokens: Sequence[int], weights: Sequence[float], tokenizer: Tokenizer, draw_newline_arrow: bool = False
) -> str:
    """Text of tokens: green where the weight is positive, red where negative, yellow where zero."""
    if len(tokens) != len(weights):
        raise ValueError(f"{len(tokens)} tokens but {len(weights)} weights")
    out, start = [], 0
    while start < len(tokens):
        sign = (weights[start] > 0) - (weights[start] < 0)
        end = start
        while end < len(tokens) and ((weights[end] > 0) - (weights[end] < 0)) == sign:
            end += 1
        text = str(tokenizer.decode(list(tokens[start:end])))
        if draw_newline_arrow:
            text = text.replace("\n", "↵\n")
        out.append(f"{(_RED, _YELLOW, _GREEN)[sign + 1]}{text}{_RESET}")
        start = end
    return "".join(out)
