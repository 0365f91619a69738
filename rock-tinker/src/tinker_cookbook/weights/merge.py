"""Merge an adapter into its base model: W += (alpha / rank) · B @ A, shard by shard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tinker_cookbook.exceptions import WeightsMergeError
from tinker_cookbook.weights.adapter_files import LoraPair, is_tied, read_adapter, resolve_model_dir

if TYPE_CHECKING:
    import torch

_INDEX = "model.safetensors.index.json"
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
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

    Memory: one shard of the base model at a time (``merge_strategy`` "auto" and "shard" mean the same; "full" is not
    needed and refused). Quantised bases are refused.

    Raises:
        WeightsMergeError: the adapter does not fit, or an option is not supported.
    """
    import torch
    from safetensors.torch import load_file, save_file

    _refuse(merge_strategy, dequantize, quantize, serving_format)
    out = Path(output_path)
    if out.exists() and any(out.iterdir()):
        raise WeightsMergeError(f"output_path={output_path} is not empty")
    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise WeightsMergeError(f"dtype={dtype!r} is unknown; use bfloat16, float16 or float32")
    source = resolve_model_dir(base_model)
    if "quantization_config" in json.loads((source / "config.json").read_text()):
        raise WeightsMergeError(f"base_model={base_model!r} is quantised; merge into its unquantised original")
    pairs = dict(read_adapter(adapter_path).pairs)
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
                delta, used = _delta(key, tensors[key], pairs)
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
    if strategy not in ("auto", "shard"):
        raise WeightsMergeError(f"merge_strategy={strategy!r} is not supported; use auto or shard")
    if dequantize or quantize or serving_format:
        raise WeightsMergeError("dequantize, quantize and serving_format are not supported; quantise the merged model")


def _shards(folder: Path) -> Iterator[Path]:
    if (folder / _INDEX).is_file():
        names = sorted(set(json.loads((folder / _INDEX).read_text())["weight_map"].values()))
        yield from (folder / name for name in names)
        return
    single = folder / "model.safetensors"
    if not single.is_file():
        raise WeightsMergeError(f"{folder} holds no model.safetensors")
    yield single


def _delta(key: str, weight: torch.Tensor, pairs: dict[str, LoraPair]) -> tuple[torch.Tensor | None, set[str]]:
    """What to add to a weight, and which modules of the adapter it came from."""
    import torch

    module = key.removesuffix(".weight")
    candidates = (module, module.removeprefix("language_model."), module.replace("model.language_model.", "model."))
    for name in candidates:
        if name in pairs:
            return _product(pairs[name], weight, name), {name}
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
            and not item.name.startswith(".")
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
    if (out / _INDEX).is_file():
        index = json.loads((out / _INDEX).read_text())
        where = index["weight_map"]
        where[_HEAD] = next(file for key, file in where.items() if key.endswith(_EMBEDDING))
        (out / _INDEX).write_text(json.dumps(index, indent=2))
