"""What would keep a server from running, found without starting it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from . import gpus
from .config import EngineConfig, RuntimeConfig
from .engine_rules import Finding, is_cluster
from .model_rules import model_findings
from .runtime.ray.dry_run import dry_run, version_findings
from .runtime.ray.placement import placement_problems, port_problems
from .scaling.plan import memory_findings

_WANTED_BYTES = 2 * 1024**3
_PROBE_SECONDS = 60
_PROBE = "import importlib.util as u, json, sys; print(json.dumps([n for n in sys.argv[1:] if not u.find_spec(n)]))"
ASSUMED_GPU_GIB = 80.0


def examine(config: RuntimeConfig, engine: EngineConfig, gpu_gib: float | None = None) -> Iterator[Finding]:
    """Findings about folders, models, the runtime's Python, placement, GPUs and memory, in the order of the files.

    ``gpu_gib`` None: the memory of this machine's GPUs, or an assumption where there are none.
    """
    for name, folder in (("checkpoints", config.checkpoints.folder), ("logs", config.logs.folder)):
        yield from _folder(name, folder)
    yield from model_findings(engine)
    yield from dry_run(engine)
    yield from ((False, text) for text in port_problems(engine, config.backend.port))
    if is_cluster(engine):
        found = gpus.probe()
        yield from gpus.findings(engine, found)
        yield from memory_findings(engine, *_memory_of(found, gpu_gib))
    if config.runtime.command is None:
        yield from _python(config.runtime.python, engine)


def _memory_of(found: list[gpus.Gpu] | None, given: float | None) -> tuple[float, str]:
    """GiB of a GPU, and whence they are known."""
    if given is not None:
        return given, "as --gpu-gib says"
    if found:
        return min(gpu.gib for gpu in found), "of this machine"
    return ASSUMED_GPU_GIB, "assumed; --gpu-gib tells another size"


def start_problems(config: RuntimeConfig, engine: EngineConfig) -> list[str]:
    """What keeps an engine from starting for certain, one sentence each: ``serve`` says it before it starts anything."""
    found = [text for good, text in model_findings(engine) if not good]
    if is_cluster(engine):
        found += placement_problems(engine) + port_problems(engine, config.backend.port)
        there = gpus.probe() if engine.device != "cpu" else None
        if there is not None:
            checks = [*gpus.findings(engine, there), *memory_findings(engine, *_memory_of(there, None))]
            found += [text for good, text in checks if not good]
    return found


def _folder(name: str, folder: Path) -> Iterator[Finding]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield False, f"{name} folder {folder}: {error.strerror}"
        return
    writable = os.access(folder, os.W_OK)
    yield writable, f"{name} folder {folder} {'can' if writable else 'cannot'} be written"
    yield free > _WANTED_BYTES, f"{free / 1e9:.1f} GB are free there (2 GB are wanted)"


def _python(python: str | None, engine: EngineConfig) -> Iterator[Finding]:
    """Whether the runtime's interpreter is there and has what the engine imports, in versions that work."""
    program = shutil.which(python or sys.executable)
    yield program is not None, f"runtime.python {python or sys.executable} {'exists' if program else 'does not exist'}"
    if program is None:
        return
    if is_cluster(engine):
        yield from version_findings(engine, program)
        return
    try:
        command = [program, "-c", _PROBE, "tinker_backend", "torch", "safetensors"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
        missing = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
        yield False, f"{program} cannot be asked for its packages: {error}"
        return
    if missing:
        yield False, f"{program} lacks {', '.join(missing)}; pip install 'tinker-backend[engine]' there"
