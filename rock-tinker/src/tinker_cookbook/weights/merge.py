"""Merge an adapter into its base model: W += (alpha / rank) · B @ A, shard by shard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tinker_cookbook.exceptions import ConfigurationError, WeightsMergeError
from tinker_cookbook.weights.adapter_files import (
    INDEX,
    LoraPair,
    fit_to_model,
    is_tied,
    per_expert,
    read_adapter,
    require_new,
    resolve_model_dir,
    weight_keys,
)

if TYPE_CHECKING:
    import torch

_DTYPES = ("bfloat16", "float16", "float32")
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
# Models whose stacked experts are written [experts, in, out]; those of gpt-oss alternate the rows of gate and up.
_INPUT_FIRST, _ALTERNATING = ("gpt_oss", "qwen3_vl_moe"), ("gpt_oss",)
# Which separate projections a fused matrix holds, in order.
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def build_hf_model(
    *,
    base_model: str,
    adapter_path: str,
    output_path: str,
    dtype: str = "bfloat16",
    trust_remote_code: bool | None = None,
    merge_strategy: Literal["auto", "shard", "full"] = "auto",
    dequantize: bool = False,
    quantize: str | None = None,
    serving_format: str | None = None,
    device: str | None = None,
) -> str:
    """Write a Hugging Face model folder with the adapter merged in. Returns the folder.

    An output layer that is tied to the embedding is written apart from it (``tie_word_embeddings`` becomes false) when
    the adapter changes it: the embedding itself was not trained.

    Memory: one shard of the base model at a time, whatever ``merge_strategy`` says ("auto", "shard" or "full"). Quantised
    bases are refused.

    Raises:
        WeightsExistError: the output folder is not empty.
        WeightsNotFoundError: a file of the adapter is missing.
        ConfigurationError: ``dtype`` or ``merge_strategy`` is unknown.
        WeightsMergeError: the adapter does not fit, or an option is not supported.
    """
    import torch
    from safetensors.torch import load_file, save_file

    if dtype not in _DTYPES:
        raise ConfigurationError(f"dtype={dtype!r} is unknown; use bfloat16, float16 or float32")
    _refuse(merge_strategy, dequantize, quantize, serving_format)
    out = require_new(output_path)
    torch_dtype: torch.dtype = getattr(torch, dtype)
    source = resolve_model_dir(base_model)
    config = json.loads((source / "config.json").read_text())
    if "quantization_config" in config:
        raise WeightsMergeError(f"base_model={base_model!r} is quantised; merge into its unquantised original")
    pairs = fit_to_model(per_expert(read_adapter(adapter_path).pairs), weight_keys(source))
    kind = str(config.get("model_type"))
    # Only the output layer was trained, so a tied one must part from the embedding.
    untie = "lm_head" in pairs and is_tied(source)
    merged: set[str] = set()
    out.mkdir(parents=True, exist_ok=True)
    try:
        for shard in _shards(source):
            tensors = load_file(str(shard), device=device or "cpu")
            if untie:
                for key in [key for key in tensors if key.endswith(_EMBEDDING)]:
                    tensors[_HEAD] = tensors[key].clone()
            for key in tensors:
                delta, used = _delta(key, tensors[key], pairs, kind)
                if delta is not None:
                    tensors[key] = tensors[key].float() + delta
                    merged |= used
                if tensors[key].is_floating_point():
                    tensors[key] = tensors[key].to(torch_dtype)
                tensors[key] = tensors[key].contiguous().cpu()
            save_file(tensors, str(out / shard.name), metadata={"format": "pt"})
        if set(pairs) != merged:
            missing = sorted(set(pairs) - merged)
            raise WeightsMergeError(
                f"{len(missing)} adapter modules have no weight in {base_model}, for example {missing[0]!r}"
            )
        _copy_rest(source, out, dtype)
        if untie:
            _untie(out)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    return str(out)


def _refuse(strategy: str, dequantize: bool, quantize: str | None, serving_format: str | None) -> None:
    if strategy not in ("auto", "shard", "full"):
        raise ConfigurationError(f"merge_strategy={strategy!r} is unknown; use auto, shard or full")
    if dequantize or quantize or serving_format:
        raise WeightsMergeError("dequantize, quantize and serving_format are not supported; quantise the merged model")


def _shards(folder: Path) -> Iterator[Path]:
    if (folder / INDEX).is_file():
        names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
        yield from (folder / name for name in names)
        return
    single = folder / "model.safetensors"
    if not single.is_file():
        raise WeightsMergeError(f"{folder} holds no model.safetensors")
    yield single


def _delta(
    key: str, weight: torch.Tensor, pairs: dict[str, LoraPair], kind: str
) -> tuple[torch.Tensor | None, set[str]]:
    """What to add to a weight, and which modules of the adapter it came from."""
    import torch

    module = key.removesuffix(".weight")
    if module in pairs:
        return _product(pairs[module], weight, module), {module}
    if ".experts." in key and weight.ndim == 3:
        return _delta_of_experts(module, weight, pairs, kind)
    head, _, last = module.rpartition(".")
    parts = [f"{head}.{part}" for part in _FUSED.get(last, ())]
    present = {part for part in parts if part in pairs}
    if not present:
        return None, set()
    if present != set(parts):
        raise WeightsMergeError(f"{key} is fused: the adapter must hold all of {parts}, it holds {sorted(present)}")
    delta = torch.cat([pairs[part].scale * (pairs[part].lora_b.float() @ pairs[part].lora_a.float()) for part in parts])
    if delta.shape != weight.shape:
        raise WeightsMergeError(f"{key}: adapter gives {tuple(delta.shape)}, the weight is {tuple(weight.shape)}")
    return delta.to(weight.device), present


def _delta_of_experts(
    module: str, weight: torch.Tensor, pairs: dict[str, LoraPair], kind: str
) -> tuple[torch.Tensor | None, set[str]]:
    """The same for a weight that holds a matrix of every expert, or two of them below each other."""
    import torch

    owner, _, last = module.rpartition(".")
    parts = _FUSED.get(last, (last,))
    names = {(e, i): f"{owner}.{e}.{part}" for e in range(weight.shape[0]) for i, part in enumerate(parts)}
    used = {place: name for place, name in names.items() if name in pairs}
    if not used:
        return None, set()
    first = pairs[next(iter(used.values()))]
    out, inner = first.lora_b.shape[0] * len(parts), first.lora_a.shape[1]
    input_first = tuple(weight.shape[1:]) == (inner, out) and (inner != out or kind in _INPUT_FIRST)
    delta = torch.zeros_like(weight, dtype=torch.float32)
    by_output = delta.transpose(1, 2) if input_first else delta
    rows = by_output.shape[1] // len(parts)
    for (expert, i), name in used.items():
        where = slice(i, None, len(parts)) if kind in _ALTERNATING else slice(i * rows, (i + 1) * rows)
        by_output[expert, where] = _product(pairs[name], by_output[expert, where], name)
    return delta, set(used.values())


def _product(pair: LoraPair, weight: torch.Tensor, name: str) -> torch.Tensor:
    delta = pair.scale * (pair.lora_b.float() @ pair.lora_a.float())
    if delta.shape != weight.shape:
        raise WeightsMergeError(f"{name}: adapter gives {tuple(delta.shape)}, the weight is {tuple(weight.shape)}")
    return delta.to(weight.device)


def _copy_rest(source: Path, out: Path, dtype: str) -> None:
    for item in source.iterdir():
        if (
            item.is_file()
            and item.suffix not in (".safetensors", ".bin", ".pt", ".gguf")
            and not item.name.startswith((".", "README"))  # which is about the base model
        ):
            shutil.copyfile(item, out / item.name)
    config = json.loads((out / "config.json").read_text())
    for key in ("torch_dtype", "dtype"):
        if key in config:
            config[key] = dtype
    (out / "config.json").write_text(json.dumps(config, indent=2))


def _untie(out: Path) -> None:
    """Say in the config, and in the index of a sharded model, that the output layer has weights of its own."""
    config = json.loads((out / "config.json").read_text())
    for part in (config, config.get("text_config") or {}):
        part["tie_word_embeddings"] = False
    (out / "config.json").write_text(json.dumps(config, indent=2))
    if (out / INDEX).is_file():
        index = json.loads((out / INDEX).read_text())
        where = index["weight_map"]
        where[_HEAD] = next(file for key, file in where.items() if key.endswith(_EMBEDDING))
        (out / INDEX).write_text(json.dumps(index, indent=2))
