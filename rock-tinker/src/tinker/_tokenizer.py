"""Which tokenizer belongs to a model."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_LLAMA_3 = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"
_OWN_PREFIXES = ("TML/", "thinkingmachines/")


def tokenizer_name(model_name: str, tokenizer_id: str | None = None) -> str:
    """Name or folder for AutoTokenizer; a ``:suffix`` of either argument is cut off."""
    if tokenizer_id:
        return tokenizer_id.partition(":")[0]
    name = model_name.partition(":")[0]
    if name.startswith("meta-llama/Llama-3"):
        return _LLAMA_3
    if name.count("/") == 2:
        return name.rpartition("/")[0]
    return name


@lru_cache(maxsize=8)
def _load(name: str) -> Any:
    if name.startswith(_OWN_PREFIXES):
        try:
            import tml_tokenizers
        except ImportError as error:
            raise ImportError(f"the tokenizer {name!r} needs the package tml_tokenizers") from error
        return tml_tokenizers.get_tokenizer(name)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ImportError("get_tokenizer needs transformers; install it with: pip install transformers") from error
    options: dict[str, Any] = {"trust_remote_code": True} if name.startswith("moonshotai/Kimi") else {}
    return AutoTokenizer.from_pretrained(name, fast=True, **options)


def load_tokenizer(model_name: str, tokenizer_id: str | None = None) -> Any:
    """The tokenizer of a model, cached a process; needs transformers."""
    return _load(tokenizer_name(model_name, tokenizer_id))
