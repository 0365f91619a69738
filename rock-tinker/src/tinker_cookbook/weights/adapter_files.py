"""Adapters on disk: reading, checking, names."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_cookbook.exceptions import WeightsAdapterError, WeightsNotFoundError
from tinker_cookbook.tokenizer_utils import find_local_folder

if TYPE_CHECKING:
    import torch

PREFIX = "base_model.model."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True)
class LoraPair:
    """The two factors of one matrix: delta = scale · B @ A."""

    lora_a: torch.Tensor
    lora_b: torch.Tensor
    scale: float

    @property
    def rank(self) -> int:
        """Inner size."""
        return int(self.lora_a.shape[-2])


@dataclass(frozen=True)
class Adapter:
    """Factors by module name (``model.layers.0.self_attn.q_proj``), and the configuration."""

    pairs: dict[str, LoraPair]
    config: dict[str, Any]


def read_adapter(folder: str | Path) -> Adapter:
    """Read an adapter folder. ``model.unembed_tokens`` becomes ``lm_head``.

    Raises:
        WeightsNotFoundError: a file is missing.
        WeightsAdapterError: a factor has no partner, or a name is not understood.
    """
    from safetensors.torch import load_file

    path = Path(folder)
    for name in (WEIGHTS, CONFIG):
        if not (path / name).is_file():
            raise WeightsNotFoundError(f"adapter_path={folder}: {name} is missing")
    config: dict[str, Any] = json.loads((path / CONFIG).read_text())
    if "lora_alpha" not in config or "r" not in config:
        raise WeightsAdapterError(f"{path / CONFIG} needs the fields 'lora_alpha' and 'r'")
    halves: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in load_file(str(path / WEIGHTS)).items():
        name = key.removeprefix(PREFIX)
        if ".base_layer." in name:
            continue  # PEFT may store a copy of an untouched embedding
        for half in ("lora_A", "lora_B"):
            if f".{half}." in name:
                module = name.split(f".{half}.")[0].replace("model.unembed_tokens", "lm_head")
                halves.setdefault(module, {})[half] = tensor
                break
        else:
            raise WeightsAdapterError(f"tensor {key!r} is not a LoRA factor")
    pairs = {}
    for module, found in halves.items():
        if set(found) != {"lora_A", "lora_B"}:
            raise WeightsAdapterError(f"{module}: only {', '.join(found)} is there")
        rank = int(found["lora_A"].shape[-2])
        alpha = (config.get("alpha_pattern") or {}).get(module, config["lora_alpha"])
        pairs[module] = LoraPair(found["lora_A"], found["lora_B"], float(alpha) / rank)
    return Adapter(pairs, config)


def resolve_model_dir(base_model: str) -> Path:
    """Folder of a base model: a local path, a model of the local cache, or a snapshot from the hub."""
    local = find_local_folder(os.path.expanduser(base_model))
    if local is not None:
        return Path(local)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(base_model))
    except Exception as error:
        raise WeightsAdapterError(f"base_model={base_model!r} is no folder and cannot be fetched: {error}") from error


def is_tied(model_dir: Path) -> bool:
    """Whether the output layer of a model is its embedding."""
    config = json.loads((model_dir / "config.json").read_text())
    text = config.get("text_config") or config
    return bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
