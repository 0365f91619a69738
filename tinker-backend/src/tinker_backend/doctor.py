"""What would keep a server from running, found without starting it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .config import EngineConfig, RuntimeConfig
from .engine_rules import is_cluster
from .models import smollm2
from .models.location import cache_folder

Finding = tuple[bool, str]
"""Whether it is well, and a sentence."""
_WANTED_BYTES = 2 * 1024**3
_PROBE_SECONDS = 60
_PROBE = "import importlib.util as u, json, sys; print(json.dumps([n for n in sys.argv[1:] if not u.find_spec(n)]))"


def examine(config: RuntimeConfig, engine: EngineConfig) -> Iterator[Finding]:
    """Findings about folders, models and the runtime's Python, in the order of the files."""
    for name, folder in (("checkpoints", config.checkpoints.folder), ("logs", config.logs.folder)):
        yield from _folder(name, folder)
    for pretrain in (engine.pretrain, *(model.pretrain for model in engine.models)):
        yield _model(pretrain, engine.model_download_type)
    if config.runtime.command is None:
        yield from _python(config.runtime.python, engine)


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


def _model(pretrain: str, hub: str) -> Finding:
    folder = Path(pretrain).expanduser()
    if folder.is_dir():
        good = (folder / "config.json").is_file()
        return good, f"model folder {folder} holds {'' if good else 'no '}config.json"
    if pretrain.rsplit("/", 1)[-1] == smollm2.NAME:
        made = smollm2.is_complete(cache_folder() / smollm2.NAME)
        return True, f"model {pretrain}: {'its folder is made' if made else 'made from a package at the first start'}"
    if pretrain.startswith(("/", ".", "~")) or pretrain.count("/") != 1:
        return False, f"pretrain {pretrain!r}: no such folder; give a model folder, a hub id or {smollm2.NAME!r}"
    return True, f"model {pretrain}: taken from {hub} or its cache at the first start"


def _python(python: str | None, engine: EngineConfig) -> Iterator[Finding]:
    """Whether the runtime's interpreter is there and has what the embedded engine imports; the cluster has its own look."""
    program = shutil.which(python or sys.executable)
    yield program is not None, f"runtime.python {python or sys.executable} {'exists' if program else 'does not exist'}"
    if program is None or is_cluster(engine):
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
