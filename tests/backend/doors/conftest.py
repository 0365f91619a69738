"""A tokenizer folder without a model: made in a second, no download."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinker_backend.models.tiny import write_tokenizer
from tinker_backend.server.chat.tokenizer import ChatTokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, 512, 512)
    return folder


@pytest.fixture(scope="session")
def chat_tokenizer(tokenizer_folder: Path) -> ChatTokenizer:
    return ChatTokenizer(tokenizer_folder)
