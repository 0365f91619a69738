"""What a cluster configuration would do: placement, ports, versions and memory, told without Ray and without a GPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tinker_backend.config import EngineConfig
from tinker_backend.engine_rules import has_trainer, is_cluster, options, strategy
from tinker_backend.runtime.ray.placement import place, placement_problems
from tinker_backend.runtime.ray.versions import installed, problems
from tinker_backend.scaling.estimate import GIB, SampleKnobs, TrainKnobs, sample_memory, train_memory
from tinker_backend.scaling.model_shape import ModelShape, known_shape, read_shape

Finding = tuple[bool, str]
"""Whether it is well, and a sentence."""
_ASSUMED_GPU_GIB = 80
_VERSIONS_SECONDS = 60


def dry_run(config: EngineConfig, python: str | None) -> list[Finding]:
    """Findings about a checked configuration; ``python`` is the runtime's interpreter, None: this one."""
    if not is_cluster(config):
        return [(True, "embedded engine: trainer and sampler in one process, no Ray")]
    found: list[Finding] = [(True, line) for line in place(config).lines()]
    found += [(False, text) for text in placement_problems(config)]
    found += [(True, line) for line in memory_lines(config)]
    return found + version_findings(config, python)


def version_findings(config: EngineConfig, python: str | None) -> list[Finding]:
    """Whether the runtime's interpreter has the packages in supported versions."""
    versions = installed()
    if python is not None:
        command = [python, "-m", "tinker_backend.runtime.ray.versions"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_VERSIONS_SECONDS, check=True)
            versions = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
            return [(False, f"runtime.python {python} cannot tell its versions: {error}")]
    wrong = problems(config, versions)
    if wrong:
        return [(False, text) for text in wrong]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return [(True, f"versions of the runtime's Python: {shown}")]


def memory_lines(config: EngineConfig, gpu_gib: float = _ASSUMED_GPU_GIB) -> list[str]:
    """Estimated bytes of one training rank and one sampling GPU."""
    shape = _shape(config)
    if shape is None:
        return [f"memory: {config.pretrain} is no local folder, so its sizes are not known yet; no estimate"]
    lines = []
    if has_trainer(config) and strategy(config.actor_train) == "fsdp2_train":
        given = options(config.actor_train)
        knobs = TrainKnobs(
            ranks=len(config.actor_train.device_mapping or [0]),
            lora_rank=config.actor_train.model_args.max_lora_rank,
            tokens=given.get("max_tokens_per_batch", 16384),
            checkpointing=given.get("activation_checkpointing", True),
            offload=given.get("offload_policy") == "cpu",
            fsdp_size=given.get("fsdp_size"),
        )
        memory = train_memory(shape, knobs)
        full = train_memory(shape, TrainKnobs(**{**knobs.__dict__, "lora_rank": 0}))
        lines.append(
            f"memory of a training rank: {memory.gpu / GIB:.1f} GiB with one adapter of rank {knobs.lora_rank}, "
            f"{full.gpu / GIB:.1f} GiB when all weights are trained (packs of {knobs.tokens} tokens)"
        )
    if strategy(config.actor_infer) == "vllm" and config.device != "cpu":
        given = options(config.actor_infer)
        sample = SampleKnobs(
            tensor_parallel=config.actor_infer.num_gpus_per_worker,
            utilization=float(given.get("gpu_memory_utilization", 0.85)),
            lora_rank=config.actor_train.model_args.max_lora_rank,
            max_loras=given.get("max_loras", 4),
        )
        held = sample_memory(shape, sample, gpu_gib * GIB)
        lines.append(
            f"memory of a sampling GPU: weights {held.weights / GIB:.1f} GiB, adapters {held.adapters / GIB:.1f} GiB, "
            f"cache {held.cache / GIB:.1f} GiB = {held.cache_tokens} tokens a replica (on GPUs of {gpu_gib:.0f} GiB)"
        )
        if held.cache_tokens < config.sequence_length:
            lines.append(
                f"the cache would not hold one sequence of {config.sequence_length} tokens: raise "
                "actor_infer.num_gpus_per_worker or gpu_memory_utilization"
            )
    return lines


def _shape(config: EngineConfig) -> ModelShape | None:
    try:
        return read_shape(Path(config.pretrain))
    except (OSError, KeyError, ValueError):
        return known_shape(config.pretrain)
