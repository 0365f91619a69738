"""The GPUs of this machine as nvidia-smi tells them, compared with what ``engine.yaml`` asks for."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from .config import EngineConfig
from .engine_rules import Finding, has_trainer, options, roles, strategy

_PROBE_SECONDS = 30
_COLUMNS = "index,uuid,name,memory.total,compute_cap"
_BFLOAT16, _VLLM = (8, 0), (7, 0)
"""First compute capabilities with bfloat16 units, and that vLLM has kernels for."""


@dataclass(frozen=True)
class Gpu:
    """One device. ``capability`` None: the driver does not tell it."""

    index: int
    uuid: str
    name: str
    gib: float
    capability: tuple[int, int] | None


def probe() -> list[Gpu] | None:
    """The GPUs that processes started from here see; None: nvidia-smi is not there, or cannot reach a driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={_COLUMNS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
        found = [_gpu(line) for line in done.stdout.splitlines() if line.strip()]
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _gpu(line: str) -> Gpu:
    index, uuid, name, mib, capability = (cell.strip() for cell in line.split(","))
    known: tuple[int, int] | None = None
    with contextlib.suppress(ValueError):
        major, minor = capability.split(".")
        known = (int(major), int(minor))
    return Gpu(int(index), uuid, name, float(mib) / 1024, known)


def _visible(found: list[Gpu], variable: str | None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names, in its order; CUDA stops at the first that it does not know."""
    if variable is None:
        return found
    chosen: list[Gpu] = []
    for name in filter(None, (part.strip() for part in variable.split(","))):
        named = [g for g in found if str(g.index) == name or (not name.isdecimal() and g.uuid.startswith(name))]
        if len(named) != 1:
            break
        chosen += named
    return chosen


def findings(config: EngineConfig, gpus: list[Gpu] | None) -> Iterator[Finding]:
    """Whether this machine has the GPUs of one node of the configuration."""
    wanted, key = _wanted(config)
    if config.device == "cpu" or not wanted:
        return
    if gpus is None:
        yield True, f"GPUs: not probed (nvidia-smi tells of none here); {key} asks for {wanted} a node"
        return
    shown = ", ".join(dict.fromkeys(_shown(gpu) for gpu in gpus)) or "none visible"
    elsewhere = " (only this machine was probed)" if config.num_nodes > 1 or config.cluster.address else ""
    if len(gpus) < wanted:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "" if hidden is None else f" with CUDA_VISIBLE_DEVICES={hidden}"
        yield (
            False,
            (
                f"{key}: asks for {wanted} GPU(s) a node, but this machine has {len(gpus)}{why} ({shown}); correct it, or start "
                f"elsewhere{elsewhere}"
            ),
        )
    else:
        yield True, f"GPUs: {len(gpus)} on this machine ({shown}), {key} asks for {wanted} a node{elsewhere}"
    used = gpus[:wanted]
    if used and max(gpu.gib for gpu in used) > 1.1 * min(gpu.gib for gpu in used):
        yield True, "the GPUs are of unequal memory; the smallest decides what fits"
    yield from _capabilities(config, used)


def _shown(gpu: Gpu) -> str:
    capability = "unknown" if gpu.capability is None else ".".join(map(str, gpu.capability))
    return f"{gpu.name}, {gpu.gib:.0f} GiB, compute capability {capability}"


def _wanted(config: EngineConfig) -> tuple[int, str]:
    """GPUs that a node must have, and the key that says so."""
    if config.num_gpus_per_node:
        return config.num_gpus_per_node, "num_gpus_per_node"
    highest = {name: max(role.device_mapping) for name, role in roles(config).items() if role.device_mapping}
    if not has_trainer(config):
        highest = {name: number for name, number in highest.items() if name == "actor_infer"}
    if not highest:
        return (1, "device") if config.device == "cuda" else (0, "")
    name = max(highest, key=lambda role: highest[role])
    return 1 + highest[name], f"{name}.device_mapping"


def _capabilities(config: EngineConfig, gpus: list[Gpu]) -> Iterator[Finding]:
    known = [(gpu.capability, gpu.name) for gpu in gpus if gpu.capability is not None]
    if not known:
        return
    least, name = min(known)
    text = ".".join(map(str, least))
    if strategy(config.actor_infer) == "vllm" and least < _VLLM:
        yield (
            False,
            (
                f"actor_infer.strategy_args.strategy_name: vllm has no kernels for compute capability {text} ({name}); set it to torch"
            ),
        )
    for role_name, role in roles(config).items():
        # A sampler without a dtype has the trainer's.
        default = "auto" if role_name == "actor_train" else "float32"
        dtype = role.model_args.dtype or options(role).get("dtype", default)
        if least < _BFLOAT16 and dtype in ("auto", "bfloat16", "bf16"):
            yield (
                False,
                (
                    f"{role_name}.model_args.dtype: {dtype} means bfloat16 on a GPU, which compute capability {text} ({name}) has no "
                    "units for; set it to float32"
                ),
            )
