"""Text to tokens and back, without torch: the ``tokenizers`` package reads the model's tokenizer.json."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import Unavailable

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@functools.cache
def _byte_alphabet() -> dict[str, int]:
    """The letter of each byte in byte-level vocabularies (the alphabet of GPT-2), inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


class ChatTokenizer:
    """The tokenizer of one model, with its chat template and the texts of its special tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tokenizer = _read_tokenizer(folder)
        document: dict[str, Any] = json.loads(self._tokenizer.to_str())
        settings = _read_json(folder / "tokenizer_config.json")
        self.specials = {
            name: token
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (token := _text_of(settings.get(name))) is not None
        }
        self.template = _read_template(folder, settings)
        self._added = {token["id"]: token["content"] for token in document.get("added_tokens") or []}
        self._special_ids = {token["id"] for token in document.get("added_tokens") or [] if token.get("special")}
        self._byte_level = "ByteLevel" in _types(document.get("decoder")) | _types(document.get("pre_tokenizer"))

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of ``text``; special tokens in the text count as themselves."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def is_special(self, token: int) -> bool:
        """Whether the token is one of the model's control tokens."""
        return token in self._special_ids

    def token_text(self, token: int) -> str:
        """The token by itself; bytes that are no whole letter show as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that the token stands for; empty for ids that the vocabulary does not have."""
        if token in self._added:
            return self._added[token].encode()
        piece: str | None = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            alphabet = _byte_alphabet()
            return b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode() for c in piece)
        if match := _BYTE_TOKEN.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace("▁", " ").encode()

    def text(self, tokens: list[int]) -> str:
        """The tokens as text, control tokens left out."""
        return b"".join(self.token_bytes(t) for t in tokens if t not in self._special_ids).decode("utf-8", "replace")


@functools.lru_cache(maxsize=16)
def open_tokenizer(folder: str) -> ChatTokenizer:
    """The tokenizer in that folder, read once. Raises Unavailable with what is missing."""
    return ChatTokenizer(Path(folder))


def _read_tokenizer(folder: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise Unavailable("text needs the package tokenizers: pip install tokenizers") from error
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise Unavailable(f"the model has no tokenizer.json in {folder.name}, so it can only be used with token ids")
    return Tokenizer.from_file(str(path))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _text_of(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _read_template(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("tool_use") or named.get("default")
    return template


def _types(part: Any) -> set[str]:
    """The types that occur in a component of tokenizer.json, nested ones too."""
    if isinstance(part, dict):
        return {part.get("type", "")}.union(*(_types(value) for value in part.values()))
    if isinstance(part, list):
        return set().union(*(_types(value) for value in part)) if part else set()
    return set()
