"""What an ``engine.yaml`` would hold on each GPU: the calculator's answer for the keys of the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tinker_backend.config import EngineConfig
from tinker_backend.engine_rules import Finding, has_trainer, options, shared_devices, strategy, vllm_lora_rank
from tinker_backend.scaling.estimate import (
    DEFAULT_UTILIZATION,
    FITS,
    GIB,
    WORKING,
    SampleKnobs,
    TrainKnobs,
    TrainMemory,
    sample_memory,
    train_memory,
)
from tinker_backend.scaling.model_shape import ModelShape, known_shape, read_shape

DEFAULT_PACK_TOKENS = 16384
_MOST_GPUS = 4096


def shape_of(config: EngineConfig) -> ModelShape | None:
    """Sizes of the base model: of its folder, or of a hub id that is known; else None."""
    try:
        return read_shape(Path(config.pretrain))
    except (OSError, KeyError, ValueError, TypeError):
        return known_shape(config.pretrain)


def train_knobs(config: EngineConfig) -> TrainKnobs:
    """The trainer's side of the file, with one adapter of the largest rank."""
    given, model = options(config.actor_train), config.actor_train.model_args
    fsdp = strategy(config.actor_train) == "fsdp2_train"
    switch = given.get("activation_checkpointing", fsdp)
    return TrainKnobs(
        ranks=len(config.actor_train.device_mapping or [0]) if fsdp else 1,
        lora_rank=model.max_lora_rank,
        tokens=given.get("max_tokens_per_batch", DEFAULT_PACK_TOKENS),
        checkpointing=switch if model.gradient_checkpointing is None else model.gradient_checkpointing,
        offload=given.get("offload_policy") == "cpu",
        fsdp_size=given.get("fsdp_size"),
    )


def sample_knobs(config: EngineConfig) -> SampleKnobs:
    """The sampler's side of the file."""
    given = options(config.actor_infer)
    return SampleKnobs(
        tensor_parallel=config.actor_infer.num_gpus_per_worker,
        utilization=float(given.get("gpu_memory_utilization", DEFAULT_UTILIZATION)),
        lora_rank=vllm_lora_rank(config.actor_train.model_args.max_lora_rank),
        max_loras=given.get("max_loras", 4),
    )


def memory_findings(config: EngineConfig, gpu_gib: float, source: str) -> list[Finding]:
    """Estimates for GPUs of ``gpu_gib``, and a problem with its fix where something does not fit. ``source``: whence the size."""
    if config.device == "cpu":
        return []
    shape = shape_of(config)
    if shape is None:
        return [(True, f"memory: the sizes of {config.pretrain} are not known yet, so there is no estimate")]
    found = [(True, f"memory on paper, for GPUs of {gpu_gib:.0f} GiB ({source}):")]
    if has_trainer(config):
        found += _trainer(config, shape, gpu_gib * GIB)
    if strategy(config.actor_infer) == "vllm":
        found += _sampler(config, shape, gpu_gib * GIB)
    return found


def _trainer(config: EngineConfig, shape: ModelShape, gpu: float) -> list[Finding]:
    knobs = train_knobs(config)
    adapter = train_memory(shape, knobs)
    full = train_memory(shape, replace(knobs, lora_rank=0))
    longest = train_memory(shape, replace(knobs, tokens=max(knobs.tokens, config.sequence_length)))
    text = (
        f"memory of a training rank: {adapter.gpu / GIB:.1f} GiB with one adapter of rank {knobs.lora_rank}, "
        f"{full.gpu / GIB:.1f} GiB when all weights are trained{_unless(full.fits(gpu))} (packs of {knobs.tokens} tokens)"
    )
    if config.sequence_length > knobs.tokens:
        text += (
            f"; {longest.gpu / GIB:.1f} GiB with an adapter and one sequence of {config.sequence_length} tokens"
            f"{_unless(longest.fits(gpu))}"
        )
    found: list[Finding] = [(True, text)]
    if not adapter.fits(gpu):
        found.append((False, _too_large(config, shape, knobs, adapter, gpu)))
    elif shared_devices(config) and strategy(config.actor_infer) == "vllm":
        found += _beside_sampler(config, adapter, full, gpu)
    return found


def _too_large(config: EngineConfig, shape: ModelShape, knobs: TrainKnobs, memory: TrainMemory, gpu: float) -> str:
    """Of the changes that help, the one that changes least."""
    at = "actor_train.strategy_args.strategy_config"
    fixes = []
    if not knobs.checkpointing and train_memory(shape, replace(knobs, checkpointing=True)).fits(gpu):
        fixes.append(f"set {at}.activation_checkpointing to true")
    tokens = knobs.tokens // 2
    while tokens >= 1024 and not train_memory(shape, replace(knobs, tokens=tokens)).fits(gpu):
        tokens //= 2
    if tokens >= 1024:
        fixes.append(f"set {at}.max_tokens_per_batch to {tokens}")
    if strategy(config.actor_train) == "fsdp2_train":
        ranks = 2 * knobs.ranks
        while ranks < _MOST_GPUS and not train_memory(shape, replace(knobs, ranks=ranks, fsdp_size=None)).fits(gpu):
            ranks *= 2
        if ranks < _MOST_GPUS:
            fixes.append(f"map {ranks} GPUs")
        if not knobs.offload and train_memory(shape, replace(knobs, offload=True)).fits(gpu):
            fixes.append(f"set {at}.offload_policy to cpu")
    return (
        f"actor_train.device_mapping: on {knobs.ranks} GPU(s) a rank needs {memory.gpu / GIB:.1f} GiB with one adapter of rank "
        f"{knobs.lora_rank}, and may take {FITS * gpu / GIB:.1f} GiB; {', or '.join(fixes) or 'choose a smaller model'}"
    )


def _beside_sampler(config: EngineConfig, adapter: TrainMemory, full: TrainMemory, gpu: float) -> list[Finding]:
    """What the trainer keeps while the sampler is awake on the same GPUs."""
    share = sample_knobs(config).utilization
    left = (1 - share) * gpu
    at = "actor_infer.strategy_args.strategy_config.gpu_memory_utilization"
    if adapter.held > left:
        return [
            (
                False,
                f"{at}: {share:g} leaves {left / GIB:.1f} GiB of a shared GPU, but the trainer keeps {adapter.held / GIB:.1f} GiB "
                f"there with one adapter; set it to at most {max(0.0, 1 - adapter.held / gpu - 0.02):.2f}, or give each role its "
                "own devices",
            )
        ]
    text = f"of a shared GPU the trainer keeps {adapter.held / GIB:.1f} GiB with one adapter while the sampler is awake"
    return [(True, f"{text}, {full.held / GIB:.1f} GiB with all weights{_unless(full.held <= left)}")]


def _sampler(config: EngineConfig, shape: ModelShape, gpu: float) -> list[Finding]:
    knobs = sample_knobs(config)
    held = sample_memory(shape, knobs, gpu)
    length = options(config.actor_infer).get("max_model_len", config.sequence_length)
    found: list[Finding] = [
        (
            True,
            f"memory of a sampling GPU: weights {held.weights / GIB:.1f} GiB, adapters {held.adapters / GIB:.1f} GiB, "
            f"cache {held.cache / GIB:.1f} GiB = {held.cache_tokens} tokens a replica",
        )
    ]
    if held.cache_tokens >= min(length, config.sequence_length):
        return found
    fixes, devices = [], len(config.actor_infer.device_mapping or ())
    for width in range(knobs.tensor_parallel + 1, devices + 1):
        wider = replace(knobs, tensor_parallel=width)
        if devices % width or shape.heads % width:
            continue
        if sample_memory(shape, wider, gpu).cache_tokens >= config.sequence_length:
            fixes.append(f"set it to {width}")
            break
    else:
        fixes.append("map more GPUs a replica")
    if knobs.utilization < 0.9 and sample_memory(shape, replace(knobs, utilization=0.9), gpu).cache_tokens >= length:
        fixes.append("raise gpu_memory_utilization to 0.9")
    if held.cache_tokens >= 1024:
        fixes.append(f"lower sequence_length to at most {held.cache_tokens}")
    taken = held.weights + held.adapters + WORKING
    found.append(
        (
            False,
            f"actor_infer.num_gpus_per_worker: {knobs.tensor_parallel}; weights, adapters and kernels take {taken / GIB:.1f} of "
            f"{knobs.utilization * gpu / GIB:.1f} GiB, so the cache holds {held.cache_tokens} tokens, fewer than one sequence of "
            f"{config.sequence_length}; {', or '.join(fixes)}",
        )
    )
    return found


def _unless(fits: bool) -> str:
    return "" if fits else ", which does not fit"
