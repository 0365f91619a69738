"""Shared fixtures of the cookbook tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def universal_tokenizer() -> Any:
    """Tiny byte-level BPE tokenizer that knows the markers of every family as single tokens."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(DATA / "tokenizer"))


@pytest.fixture(scope="session")
def universal_tokenizer_path() -> str:
    return str(DATA / "tokenizer")
