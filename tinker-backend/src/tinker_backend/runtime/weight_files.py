"""Weights on disk: training, sampler and external folders, written atomically and checked when read.

    training   adapter_model.safetensors + adapter_config.json (PEFT names), or model.safetensors for all weights;
               optimizer.safetensors, gradients.safetensors when there are any; tinker.json
    sampler    the same without optimizer and gradients
    external   a PEFT adapter folder, or a Hugging Face model folder, and nothing else

``tinker.json`` holds format, kind, base model, LoRA options, step and the SHA-256 of every file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinker_backend.runtime.base_model import BaseModel, read_weights, unfuse
from tinker_backend.runtime.lora import AdapterLayout
from tinker_backend.runtime.roles import LoraSpec, RunSpec, RuntimeFault, SavedWeights, SaveKind
from tinker_backend.runtime.training_run import FullLayout, TrainingRun

FORMAT = 1
_PEFT_PREFIX = "base_model.model."
_COPIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "added_tokens.json",
)


def save_run(run: TrainingRun, path: str, kind: SaveKind) -> SavedWeights:
    """Writes a run to the folder ``path``: a temporary sibling first, then one rename."""
    target = Path(path)
    staged = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        staged.mkdir(parents=True)
        _write_weights(run, staged, kind)
        if kind == "training":
            _write_training_state(run, staged)
        if kind != "external":
            write_manifest(run.spec, run.base, run.step, staged, kind)
        files = {str(p.relative_to(staged)): p.stat().st_size for p in sorted(staged.rglob("*")) if p.is_file()}
        for name in files:
            (staged / name).chmod(0o644)
            _fsync(staged / name)
        _fsync(staged)
        put_in_place(staged, target)
    except (OSError, SafetensorError) as error:
        raise RuntimeFault(f"weights cannot be written to {target}: {error}", "server") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return SavedWeights(str(target), sum(files.values()), files)


def put_in_place(staged: Path, target: Path) -> None:
    """Renames a finished folder to its name; an older one of that name goes."""
    if target.exists():
        old = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.old"
        os.rename(target, old)
        os.rename(staged, target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(staged, target)
    _fsync(target.parent)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_weights(run: TrainingRun, folder: Path, kind: SaveKind) -> None:
    if isinstance(run.layout, AdapterLayout):
        named = {_PEFT_PREFIX + n: t.contiguous().cpu() for n, t in run.layout.tensors(run.values).items()}
        save_file(named, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
        config = adapter_config(run.layout, run.base)
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        return
    dtype = run.base.dtype if kind == "external" else torch.float32
    weights = unfuse(run.base.architecture, run.layout.tensors(run.values))
    named = {name: tensor.to(dtype).contiguous().cpu() for name, tensor in weights.items()}
    save_file(named, str(folder / "model.safetensors"), metadata={"format": "pt"})
    for name in _COPIED:
        if (run.base.folder / name).is_file():
            shutil.copyfile(run.base.folder / name, folder / name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    written = str(dtype).removeprefix("torch.")
    config |= {key: written for key in ("dtype", "torch_dtype") if key in config}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def adapter_config(layout: AdapterLayout, base: BaseModel) -> dict[str, Any]:
    """The ``adapter_config.json`` that PEFT and vLLM read."""
    modules = {m.path.rsplit(".", 1)[-1] for p in layout.projections.values() for m in p.modules}
    if base.architecture.name == "gpt2":
        # c_proj is the name of two modules; the longer name tells them apart.
        modules = {
            ".".join(m.path.rsplit(".", 2)[-2:]).removeprefix(".")
            for p in layout.projections.values()
            for m in p.modules
        }
    alpha = layout.spec.alpha
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base.folder) if base.folder.name == base.name else base.name,
        "r": layout.rank,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(modules),
        "fan_in_fan_out": base.architecture.name == "gpt2",
        "bias": "none",
        "inference_mode": True,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }


def _write_training_state(run: TrainingRun, folder: Path) -> None:
    if run.exp_avg is not None and run.exp_avg_sq is not None:
        state = {"exp_avg": run.exp_avg.cpu(), "exp_avg_sq": run.exp_avg_sq.cpu()}
        save_file(state, str(folder / "optimizer.safetensors"))
    if run.gradients is not None:
        save_file({"gradients": run.gradients.cpu()}, str(folder / "gradients.safetensors"))


def write_manifest(spec: RunSpec, base: BaseModel, step: int, folder: Path, kind: SaveKind) -> None:
    """Writes ``tinker.json`` with the digests of all files that the folder holds so far."""
    digests = {str(p.relative_to(folder)): _sha256(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    content = {
        "format": FORMAT,
        "kind": kind,
        "base_model": base.name,
        "lora": asdict(spec.lora),
        "step": step,
        "sha256": digests,
    }
    (folder / "tinker.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_manifest(path: str) -> dict[str, Any]:
    """``tinker.json`` of a saved folder, or the same facts out of a PEFT or Hugging Face folder.

    Raises RuntimeFault (user) when the folder holds no weights.
    """
    folder = Path(path)
    if (folder / "tinker.json").is_file():
        manifest: dict[str, Any] = json.loads((folder / "tinker.json").read_text(encoding="utf-8"))
        if manifest.get("format") != FORMAT:
            raise RuntimeFault(
                f"{path}: format {manifest.get('format')!r} is not known; this runtime reads {FORMAT}", "user"
            )
        return manifest
    if (folder / "adapter_config.json").is_file():
        return _peft_manifest(folder)
    if (folder / "config.json").is_file():
        full = asdict(LoraSpec(rank=0))
        return {"format": FORMAT, "kind": "external", "base_model": None, "lora": full, "step": 0, "sha256": {}}
    raise RuntimeFault(f"{path} holds no saved weights (no tinker.json, adapter_config.json or config.json)", "user")


def _peft_manifest(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    off = {"use_dora": False, "rank_pattern": {}, "alpha_pattern": {}, "bias": "none", "modules_to_save": None}
    for key, plain in off.items():
        if config.get(key, plain) not in (plain, None, []):
            raise RuntimeFault(f"{folder}: adapter with {key}={config[key]!r} is not supported", "user")
    if config.get("peft_type", "LORA") != "LORA":
        raise RuntimeFault(f"{folder}: peft_type {config['peft_type']!r} is not supported; only LORA is", "user")
    rank = int(config["r"])
    alpha = float(config["lora_alpha"])
    modules = config.get("target_modules") or []
    names = [modules] if isinstance(modules, str) else list(modules)

    def any_of(*parts: str) -> bool:
        return any(part in name for name in names for part in parts)

    spec = LoraSpec(
        rank=rank,
        alpha=alpha * rank**0.5 if config.get("use_rslora") else alpha,
        train_attn=any_of("q_proj", "k_proj", "v_proj", "o_proj", "qkv", "attn", "dense", "all-linear"),
        train_mlp=any_of("gate", "up_proj", "down_proj", "fc", "mlp", "all-linear"),
        train_unembed=any_of("lm_head"),
    )
    base = config.get("base_model_name_or_path")
    return {"format": FORMAT, "kind": "external", "base_model": base, "lora": asdict(spec), "step": 0, "sha256": {}}


def weights_info(path: str) -> dict[str, Any]:
    """What a saved folder holds, for the server."""
    manifest = read_manifest(path)
    lora = manifest["lora"]
    return {
        "base_model": manifest["base_model"],
        "is_lora": lora["rank"] > 0,
        "lora_rank": lora["rank"] or None,
        "train_unembed": lora["train_unembed"],
        "train_mlp": lora["train_mlp"],
        "train_attn": lora["train_attn"],
        "optimizer": manifest["kind"] == "training",
    }


def load_run(spec: RunSpec, base: BaseModel, path: str, optimizer: bool) -> TrainingRun:
    """A run from a saved folder; with ``optimizer`` also moments, step and accumulated gradients.

    Raises RuntimeFault (user) when the folder does not fit, (server) when it is damaged.
    """
    manifest = read_manifest(path)
    verify(Path(path), manifest)
    saved = LoraSpec(**manifest["lora"])
    if saved.rank != spec.lora.rank:
        raise RuntimeFault(f"{path} was saved with rank {saved.rank}, the run has rank {spec.lora.rank}", "user")
    spec = replace(spec, lora=saved)
    layout, values = read_values(base, saved, path)
    run = TrainingRun(spec, base, layout, values)
    if not optimizer:
        return run
    if manifest["kind"] != "training":
        raise RuntimeFault(f"{path} holds weights alone; load it without the optimizer", "user")
    run.step = int(manifest["step"])
    state_file, gradient_file = Path(path) / "optimizer.safetensors", Path(path) / "gradients.safetensors"
    if state_file.is_file():
        state = load_file(str(state_file))
        run.exp_avg, run.exp_avg_sq = state["exp_avg"].to(base.device), state["exp_avg_sq"].to(base.device)
    if gradient_file.is_file():
        run.gradients = load_file(str(gradient_file))["gradients"].to(base.device)
    for tensor in (run.exp_avg, run.exp_avg_sq, run.gradients):
        if tensor is not None and tensor.shape != run.values.shape:
            raise RuntimeFault(f"{path}: optimizer or gradients do not fit the weights", "server")
    return run


def read_values(base: BaseModel, spec: LoraSpec, path: str) -> tuple[AdapterLayout | FullLayout, Tensor]:
    """Layout and flat float32 values of a saved adapter or model."""
    folder = Path(path)
    if spec.rank == 0:
        full = FullLayout(base.architecture)
        return full, full.flatten(read_weights(folder, base.architecture, torch.float32, base.device), base.device)
    layout = AdapterLayout(base.architecture, spec)
    try:
        tensors = load_file(str(folder / "adapter_model.safetensors"))
    except (OSError, SafetensorError) as error:
        raise RuntimeFault(f"{path}: adapter_model.safetensors cannot be read: {error}", "server") from error
    flat = torch.zeros(layout.size)
    _fill(layout.tensors(flat), {n.removeprefix(_PEFT_PREFIX): t for n, t in tensors.items()}, path)
    return layout, flat.to(base.device)


def _fill(views: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: str) -> None:
    unknown = sorted(set(tensors) - set(views))
    if unknown:
        raise RuntimeFault(f"{path}: adapter tensor {unknown[0]} has no place in the base model", "user")
    for name, tensor in tensors.items():
        if views[name].shape != tensor.shape:
            raise RuntimeFault(
                f"{path}: adapter tensor {name} has shape {tuple(tensor.shape)}, not {tuple(views[name].shape)}", "user"
            )
        views[name].copy_(tensor)


def verify(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raises RuntimeFault (server) when a file is not the one that was written."""
    for name, digest in manifest["sha256"].items():
        if not (folder / name).is_file() or _sha256(folder / name) != digest:
            raise RuntimeFault(
                f"{folder}: {name} is missing or damaged (its SHA-256 is not that of tinker.json)", "server"
            )
