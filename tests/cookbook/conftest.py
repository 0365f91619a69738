"""Shared fixtures of the cookbook tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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


@pytest.fixture(scope="session")
def tiny_chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random model with a tokenizer, a chat template and a context of 4096 tokens."""
    from tinker_backend.models.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("tiny-chat") / "tiny", context=4096)


@pytest.fixture(scope="session")
def recipe_backend(tmp_path_factory: pytest.TempPathFactory, tiny_chat_model: Path) -> Iterator[Any]:
    """One backend over the engine for recipes that run as programs; its model's name is the model's folder."""
    from recipe_backend import RecipeBackend

    backend = RecipeBackend(tmp_path_factory.mktemp("recipe-backend"), tiny_chat_model)
    yield backend
    backend.stop()
