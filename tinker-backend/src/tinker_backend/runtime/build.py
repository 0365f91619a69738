"""Builds an embedded engine from ``engine.yaml``."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tinker_backend.config import EngineConfig
from tinker_backend.models.location import resolve_model
from tinker_backend.runtime.base_model import BaseModel, load_base_model
from tinker_backend.runtime.engine import Engine
from tinker_backend.runtime.hardware import available_memory, chosen_threads, pick_device, pick_dtype, use_fast_float32
from tinker_backend.runtime.kv_cache import bytes_per_token
from tinker_backend.runtime.roles import RuntimeFault
from tinker_backend.runtime.torch_sampler import TorchSampler
from tinker_backend.runtime.torch_trainer import TorchTrainer

log = logging.getLogger(__name__)
_KV_CACHE_TOKENS = 65536


@dataclass(frozen=True)
class Built:
    """An engine and the facts that ``hello`` tells."""

    engine: Engine
    device: torch.device
    dtype: torch.dtype
    threads: int
    bases: list[BaseModel]


def _count(given: dict[str, Any], key: str, default: int) -> int:
    value = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RuntimeFault(f"strategy_config.{key}: {value!r} must be a positive whole number", "user")
    return value


def _known(role: str, given: dict[str, Any], keys: set[str]) -> None:
    for key in given:
        if key not in keys:
            raise RuntimeFault(
                f"{role}.strategy_args.strategy_config.{key}: unknown to the torch strategy; known: {', '.join(sorted(keys))}",
                "user",
            )


def _kv_cache_tokens(bases: list[BaseModel]) -> int:
    """Tokens of keys and values: 65,536, on a processor no more than a quarter of the free memory holds; always a context."""
    free = available_memory() if bases[0].device.type == "cpu" else None
    if free is None:
        return _KV_CACHE_TOKENS
    fits = free // 4 // max(bytes_per_token(base.architecture, base.dtype) for base in bases)
    return max(2 * max(base.context for base in bases), min(_KV_CACHE_TOKENS, fits))


def build_engine(config: EngineConfig) -> Built:
    """Loads the base models and makes trainer, sampler and engine.

    Raises RuntimeFault, ModelNotFound or UnsupportedModel with a sentence that names the key and the fix.
    """
    train, infer = config.actor_train.strategy_args, config.actor_infer.strategy_args
    for role, strategy in (("actor_train", train), ("actor_infer", infer)):
        if strategy.strategy_name != "torch":
            raise RuntimeFault(
                f"{role}.strategy_name: {strategy.strategy_name!r} does not belong to the embedded engine", "user"
            )
    _known("actor_train", train.strategy_config, {"dtype", "max_tokens_per_batch", "activation_checkpointing"})
    _known("actor_infer", infer.strategy_config, {"kv_cache_tokens", "max_batch_size", "prefill_tokens_per_step"})
    threads = config.threads or chosen_threads()
    torch.set_num_threads(threads)
    log.info("%d threads, float32 products in oneDNN: %s", threads, use_fast_float32())
    device = pick_device(config.device)
    dtype = pick_dtype(config.actor_train.model_args.dtype or train.strategy_config.get("dtype", "auto"), device)
    checkpointing = config.actor_train.model_args.gradient_checkpointing
    if checkpointing is None:
        checkpointing = train.strategy_config.get("activation_checkpointing", False)
    wanted = [(config.pretrain, config.model_name, config.aliases)]
    wanted += [(m.pretrain, m.model_name, m.aliases) for m in config.models]
    bases, models = [], {}
    for pretrain, model_name, aliases in wanted:
        start = time.monotonic()
        folder = resolve_model(pretrain, config.model_download_type)
        name = model_name or (folder.name if Path(pretrain).expanduser().is_dir() else pretrain)
        base = load_base_model(
            folder, name, aliases, dtype, device, config.sequence_length, config.actor_train.model_args.max_lora_rank
        )
        for public in (name, *aliases):
            if public in models:
                raise RuntimeFault(f"model name {public!r} is given twice in engine.yaml", "user")
            models[public] = base
        bases.append(base)
        log.info("loaded %s from %s in %.1f s (%s, %s)", name, folder, time.monotonic() - start, dtype, device)
    # A processor is as fast with small passes, which need less memory and let samples have their turn sooner.
    tokens = _count(train.strategy_config, "max_tokens_per_batch", 16384 if device.type == "cuda" else 2048)
    trainer = TorchTrainer(models, tokens, bool(checkpointing))
    sampler = TorchSampler(
        models,
        _count(infer.strategy_config, "kv_cache_tokens", _kv_cache_tokens(bases)),
        _count(infer.strategy_config, "max_batch_size", 64),
        _count(infer.strategy_config, "prefill_tokens_per_step", 1024),
    )
    return Built(Engine(models, trainer, sampler), device, dtype, threads, bases)
