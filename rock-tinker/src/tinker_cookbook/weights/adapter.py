"""An adapter in the layout that PEFT, vLLM and SGLang load."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import WeightsAdapterError
from tinker_cookbook.tokenizer_utils import find_local_folder
from tinker_cookbook.weights.adapter_files import (
    CONFIG,
    PREFIX,
    WEIGHTS,
    LoraPair,
    fit_to_model,
    per_expert,
    read_adapter,
    require_new,
    weight_keys,
)


def build_lora_adapter(
    *, base_model: str, adapter_path: str, output_path: str, trust_remote_code: bool | None = None
) -> str:
    """Convert a downloaded checkpoint to a PEFT folder. Returns the folder.

    The output layer is named ``lm_head``, also where it is tied to the embedding: only the output was trained.
    Stacked expert factors ``[experts, ...]`` become one pair per expert. Modules are named as the base model names its weights,
    if it is a folder or in the local cache. Ranks that differ go to ``rank_pattern`` and ``alpha_pattern``.

    Raises:
        WeightsExistError: the output folder is not empty.
        WeightsNotFoundError: a file of the checkpoint is missing.
        WeightsAdapterError: the checkpoint is incomplete.
    """
    from safetensors.torch import save_file

    out = require_new(output_path)
    adapter = read_adapter(adapter_path)
    pairs = per_expert(adapter.pairs)
    if not pairs:
        raise WeightsAdapterError(f"adapter_path={adapter_path} holds no LoRA factors")
    base = find_local_folder(os.path.expanduser(base_model))
    if base is not None:
        pairs = fit_to_model(pairs, weight_keys(Path(base)))
    tensors = {}
    for module, pair in pairs.items():
        # Copies, since experts may share a factor and a file holds no tensor twice.
        tensors[f"{PREFIX}{module}.lora_A.weight"] = pair.lora_a.contiguous().clone()
        tensors[f"{PREFIX}{module}.lora_B.weight"] = pair.lora_b.contiguous().clone()
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(out / WEIGHTS), metadata={"format": "pt"})
    (out / CONFIG).write_text(json.dumps(_config(base_model, adapter.config, pairs), indent=2))
    return str(out)


def _config(base_model: str, original: dict[str, Any], pairs: dict[str, LoraPair]) -> dict[str, Any]:
    rank = max(pair.rank for pair in pairs.values())
    alpha = original["lora_alpha"]
    rank_pattern = {module: pair.rank for module, pair in pairs.items() if pair.rank != rank}
    # PEFT scales by alpha / rank of the module.
    alpha_pattern = {m: p.scale * p.rank for m, p in pairs.items() if abs(p.scale * p.rank - alpha) > 1e-9}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted({module.rsplit(".", 1)[-1] for module in pairs}),
        "rank_pattern": rank_pattern,
        "alpha_pattern": alpha_pattern,
    }
