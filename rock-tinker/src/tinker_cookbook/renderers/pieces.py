"""Text pieces: markup of a family may contain special tokens, content of a message may not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tinker_cookbook.tokenizer_utils import Tokenizer, encode_without_special_tokens


@dataclass(frozen=True)
class Markup:
    """Text of the family itself; markers that the tokenizer knows become single tokens."""

    text: str


@dataclass(frozen=True)
class Break:
    """Encode what stands before and after separately (where a sampling prompt ends)."""


Piece: TypeAlias = str | Markup | Break


def plain(piece: Piece) -> str:
    """A piece as ordinary text, for formats without markers of their own."""
    return piece if isinstance(piece, str) else getattr(piece, "text", "")


class PieceEncoder:
    """Encodes pieces with one tokenizer. Ordinary text that stands side by side is encoded as one string."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._markers: dict[str, int] = dict(getattr(tokenizer, "get_added_vocab", dict)())
        longest_first = sorted(self._markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def encode(self, pieces: Iterable[Piece]) -> list[int]:
        """Tokens of the pieces."""
        tokens: list[int] = []
        plain: list[str] = []

        def flush() -> None:
            tokens.extend(encode_without_special_tokens(self._tokenizer, "".join(plain)))
            plain.clear()

        for piece in pieces:
            if isinstance(piece, Break):
                flush()
            elif isinstance(piece, str):
                plain.append(piece)
            else:
                position = 0
                for match in self._pattern.finditer(piece.text) if self._pattern else ():
                    plain.append(piece.text[position : match.start()])
                    flush()
                    tokens.append(self._markers[match.group()])
                    position = match.end()
                plain.append(piece.text[position:])
        flush()
        return tokens

    def token(self, marker: str) -> int:
        """Id of a marker that must be one token.

        Raises:
            RendererError: the tokenizer spells it with several tokens.
        """
        from tinker_cookbook.exceptions import RendererError

        ids = self.encode([Markup(marker)])
        if len(ids) != 1:
            name = getattr(self._tokenizer, "name_or_path", type(self._tokenizer).__name__)
            raise RendererError(
                f"tokenizer {name!r} has no token {marker!r}, which this renderer stops at. Choose a renderer of the "
                "model's own family, 'chat_template', or 'role_colon', which fits every tokenizer."
            )
        return ids[0]
