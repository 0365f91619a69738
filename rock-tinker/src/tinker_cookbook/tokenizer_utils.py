"""Tokenizers by model name: own registry first, then a local folder, then the Hugging Face hub or its cache.

Local folders are the name itself as a path, and ``<name>`` or its last part below ``$TINKER_MODELS_DIR`` and
``~/.cache/tinker-backend/models``, where a local backend keeps its models.
"""

from __future__ import annotations

import functools
import json
import os
import re
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from tinker_cookbook.exceptions import ConfigurationError

if TYPE_CHECKING:
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    Tokenizer: TypeAlias = PreTrainedTokenizerBase
else:
    Tokenizer = Any

_HUB_SECONDS = 5.0
_registry: dict[str, Callable[[], Any]] = {}

# Gated repositories whose tokenizer is also published without a gate.
_UNGATED = ((re.compile(r"^meta-llama/Llama-3"), "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"),)


def register_tokenizer(name: str, factory: Callable[[], Any]) -> None:
    """Make ``get_tokenizer(name)`` return ``factory()``; later calls for the same name replace the factory."""
    _registry[name] = factory
    _load.cache_clear()


def unregister_tokenizer(name: str) -> bool:
    """Forget a registered tokenizer. Returns whether there was one."""
    _load.cache_clear()
    return _registry.pop(name, None) is not None


def is_tokenizer_registered(name: str) -> bool:
    """Whether ``register_tokenizer`` was called for this name."""
    return name in _registry


def get_registered_tokenizer_names() -> list[str]:
    """Names in the registry, sorted."""
    return sorted(_registry)


def get_tokenizer(model_name: str) -> Tokenizer:
    """Tokenizer of a model: registered factory, local folder, or hub name (cached per process).

    A suffix after a colon (``org/name:peft:262144``) is cut off.

    Raises:
        ConfigurationError: nothing with this name can be loaded.
    """
    return _load(model_name)


def find_local_folder(model_name: str) -> str | None:
    """Folder of a model on this machine, if there is one."""
    if os.path.isdir(model_name):
        return model_name
    base = model_name.split(":")[0]
    roots = [os.environ.get("TINKER_MODELS_DIR"), os.path.expanduser("~/.cache/tinker-backend/models")]
    for root in filter(None, roots):
        for name in (base, base.split("/")[-1]):
            folder = os.path.join(root, name)
            if name and os.path.isfile(os.path.join(folder, "config.json")):
                return folder
    return base if os.path.isdir(base) else None


def _is_generic(folder: str) -> bool:
    """Whether ``tokenizer.json`` is all there is to a tokenizer. ``AutoTokenizer`` would give the same object, and
    import torch (three seconds, hundreds of megabytes) to find out."""
    path = os.path.join(folder, "tokenizer_config.json")
    if not os.path.isfile(path) or not os.path.isfile(os.path.join(folder, "tokenizer.json")):
        return False
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError:
        return False  # AutoTokenizer says what is wrong
    generic = ("PreTrainedTokenizerFast", "TokenizersBackend")
    return isinstance(config, dict) and config.get("tokenizer_class") in generic and "auto_map" not in config


def _hub_answers() -> bool:
    """One try to reach the hub; its client repeats each failed look-up for half a minute. Behind a proxy that client decides."""
    if {"http", "https", "all"} & urllib.request.getproxies().keys():
        return True
    hub = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        port = hub.port or (80 if hub.scheme == "http" else 443)
        socket.create_connection((hub.hostname or "", port), _HUB_SECONDS).close()
    except OSError:
        return False
    return True


@functools.cache
def _load(model_name: str) -> Any:
    if model_name in _registry:
        return _registry[model_name]()
    base = model_name.split(":")[0]
    if base in _registry:
        return _registry[base]()
    folder = find_local_folder(model_name)
    base = folder or base
    if folder is None:
        for pattern, replacement in _UNGATED:
            if pattern.match(base):
                base = replacement
    trust = base.startswith("moonshotai/")
    cached_only = folder is None and not _hub_answers()
    try:
        if folder is not None and _is_generic(folder):
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(folder)
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(base, use_fast=True, trust_remote_code=trust, local_files_only=cached_only)
    except ImportError:
        raise
    except Exception as error:  # transformers and tokenizers raise many kinds
        why = (str(error).splitlines() or [repr(error)])[0]
        if cached_only:
            why = "the Hugging Face hub cannot be reached, and its cache here has none"
        raise ConfigurationError(
            f"model_name={model_name!r}: no tokenizer found ({why}). Give a folder that holds "
            "tokenizer.json, run where ./<org>/<name>/ is such a folder, or call register_tokenizer()."
        ) from error


def encode_without_special_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode text so that markers inside it (``<|im_end|>`` typed by a user) stay ordinary characters."""
    if not text:
        return []
    ordinary = getattr(tokenizer, "encode_ordinary", None)
    if ordinary is not None:
        return list(ordinary(text))
    try:
        return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
    except TypeError:  # registered tokenizers need not know the second option
        return list(tokenizer.encode(text, add_special_tokens=False))
