"""An adapter in the layout that PEFT, vLLM and SGLang load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tinker_cookbook.exceptions import WeightsAdapterError
from tinker_cookbook.weights.adapter_files import (
    CONFIG,
    PREFIX,
    WEIGHTS,
    LoraPair,
    read_adapter,
)


def build_lora_adapter(
    *, base_model: str, adapter_path: str, output_path: str, trust_remote_code: bool | None = None
) -> str:
    """Convert a downloaded checkpoint to a PEFT folder. Returns the folder.

    The output layer is named ``lm_head``, also where it is tied to the embedding: only the output was trained.
    Stacked expert factors ``[experts, ...]`` become one pair per expert. Ranks that differ go to ``rank_pattern`` and
    ``alpha_pattern``.

    Raises:
        WeightsAdapterError: the checkpoint is incomplete or the output folder is not empty.
    """
    from safetensors.torch import save_file

    out = Path(output_path)
    if out.exists() and any(out.iterdir()):
        raise WeightsAdapterError(f"output_path={output_path} is not empty")
    adapter = read_adapter(adapter_path)
    pairs: dict[str, LoraPair] = {}
    for module, pair in adapter.pairs.items():
        if pair.lora_a.ndim == 3:
            for expert in range(pair.lora_a.shape[0]):
                name = module.replace(".experts.", f".experts.{expert}.")
                pairs[name] = LoraPair(pair.lora_a[expert], pair.lora_b[expert], pair.scale)
        else:
            pairs[module] = pair
    tensors = {}
    for module, pair in pairs.items():
        tensors[f"{PREFIX}{module}.lora_A.weight"] = pair.lora_a.contiguous()
        tensors[f"{PREFIX}{module}.lora_B.weight"] = pair.lora_b.contiguous()
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
