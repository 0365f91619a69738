"""Adapters on disk: reading, checking, names."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_cookbook.exceptions import WeightsAdapterError, WeightsExistError, WeightsNotFoundError
from tinker_cookbook.tokenizer_utils import find_local_folder

if TYPE_CHECKING:
    import torch

PREFIX = "base_model.model."
_EXPERT_PROJECTIONS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
INDEX = "model.safetensors.index.json"


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
    """Read an adapter folder. Modules get the names of the Transformers library: ``lm_head`` for ``model.unembed_tokens``, and
    ``gate_proj``, ``down_proj``, ``up_proj`` for ``w1``, ``w2``, ``w3`` of experts.

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
        if ".base_layer." in name or tensor.numel() == 0:
            continue  # PEFT may store a copy of an untouched embedding; what was not trained may be stored empty
        for half in ("lora_A", "lora_B"):
            if f".{half}." in name:
                halves.setdefault(_module_name(name.split(f".{half}.")[0]), {})[half] = tensor
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


def _module_name(name: str) -> str:
    owner, _, last = name.replace("model.unembed_tokens", "lm_head").rpartition(".")
    return ".".join(
        part for part in (owner, _EXPERT_PROJECTIONS.get(last, last) if owner.endswith(".experts") else last) if part
    )


def per_expert(pairs: dict[str, LoraPair]) -> dict[str, LoraPair]:
    """Factors that are stacked by expert, one by one: ``experts.up_proj`` becomes ``experts.0.up_proj`` and so on. A stack of
    one is shared by all experts.

    Raises:
        WeightsAdapterError: the two factors are of different numbers of experts.
    """
    single: dict[str, LoraPair] = {}
    for module, pair in pairs.items():
        if pair.lora_a.ndim == 2:
            single[module] = pair
            continue
        sizes = {pair.lora_a.shape[0], pair.lora_b.shape[0]}
        count = max(sizes)
        if not sizes <= {1, count}:
            raise WeightsAdapterError(f"{module}: factors of {sorted(sizes)} experts")
        lora_a, lora_b = (half.expand(count, *half.shape[1:]) for half in (pair.lora_a, pair.lora_b))
        for expert in range(count):
            name = module.replace(".experts.", f".experts.{expert}.")
            single[name] = LoraPair(lora_a[expert], lora_b[expert], pair.scale)
    return single


def fit_to_model(pairs: dict[str, LoraPair], keys: Collection[str]) -> dict[str, LoraPair]:
    """Name modules as a model with these weights does: text layers below its language model, ``self_attn`` for ``attn``."""
    prefix = next(
        (p for p in ("model.language_model.", "language_model.model.") if any(k.startswith(p) for k in keys)), ""
    )
    renames_attention = any(".self_attn." in key for key in keys)

    def name(module: str) -> str:
        if renames_attention:
            module = module.replace(".attn.", ".self_attn.")
        if prefix and module.startswith("model.") and not module.startswith(prefix):
            return prefix + module.removeprefix("model.")
        return "language_model.lm_head" if module == "lm_head" and "language_model.lm_head.weight" in keys else module

    return {name(module): pair for module, pair in pairs.items()}


def weight_keys(model_dir: Path) -> set[str]:
    """Names of the weights of a model folder; none if it holds no safetensors."""
    from safetensors import safe_open

    index, single = model_dir / INDEX, model_dir / "model.safetensors"
    if index.is_file():
        return set(json.loads(index.read_text())["weight_map"])
    if not single.is_file():
        return set()
    with safe_open(str(single), framework="pt") as file:
        return set(file.keys())


def require_new(output_path: str) -> Path:
    """The folder to write; it must not hold anything.

    Raises:
        WeightsExistError: it does.
    """
    out = Path(output_path)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WeightsExistError(f"output_path={output_path} is not empty")
    return out


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
