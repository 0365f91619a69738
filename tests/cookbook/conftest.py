"""Shared fixtures of the cookbook tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def universal_tokenizer() -> Any:
    """Tiny byte-level BPE tokenizer that knows the markers of every family as single tokens."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(DATA / "tokenizer"))


@pytest.fixture(scope="session")
def universal_tokenizer_path() -> str:
    return str(DATA / "tokenizer")


@pytest.fixture
def fake_service(universal_tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A service in memory in place of ``tinker.ServiceClient``."""
    from fake_service import Service

    import tinker

    service = Service(universal_tokenizer)
    monkeypatch.setattr(tinker, "ServiceClient", service)
    return service
