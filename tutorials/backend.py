"""The server that the tutorials talk to.

    server = await connect()
    service = tinker.ServiceClient()

Is ``TINKER_BASE_URL`` set, that server is used. Otherwise one is started for the notebook: embedded engine, a tiny
model with random weights, ready in seconds; it ends with the notebook. ``connect("smollm2")``, or
``TINKER_TUTORIAL_MODEL=smollm2``, takes SmolLM2-135M-Instruct instead: the same cells, answers in English, minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

import tinker
from tinker_cookbook import tokenizer_utils
from tinker_cookbook.launch import ServerJob
from tinker_cookbook.renderers import Renderer, get_renderer

_FOLDERS = {"tiny": "tutorial-tiny", "smollm2": "SmolLM2-135M-Instruct"}
_MAKERS = {
    "tiny": ("tinker_backend.models.tiny", "--family", "qwen3", "--context", "2048"),
    "smollm2": ("tinker_backend.models.smollm2",),
}
# Until the process ends: its server, and the folder of its runs.
_open = contextlib.AsyncExitStack()
_folders: list[tempfile.TemporaryDirectory[str]] = []


@dataclass(frozen=True)
class Server:
    """Where the server is, and what suits its model.

    ``learning_rate``: a rate at which the short runs of the tutorials visibly learn; that of the tiny model is far
    above anything for a real one. ``runs``: folder for the files of runs, removed when the notebook ends.
    """

    base_url: str
    model: str
    renderer_name: str
    learning_rate: float
    runs: Path

    @property
    def renderer(self) -> Renderer:
        """Conversations to tokens and back."""
        tokenizer = tokenizer_utils.get_tokenizer(self.model)
        return get_renderer(self.renderer_name, tokenizer, model_name=self.model)

    @property
    def model_folder(self) -> str:
        """Folder of the base model, or its hub name where no folder is known."""
        return tokenizer_utils.find_local_folder(self.model) or self.model


async def connect(model: str | None = None) -> Server:
    """The server in ``TINKER_BASE_URL``, or a new one.

    Args:
        model: "tiny" or "smollm2" for a new server, a name that the server knows otherwise; default:
            ``TINKER_TUTORIAL_MODEL``, else "tiny" and the first model of the server.

    Raises:
        ValueError: a new server is to be started with another model.
    """
    wanted = model or os.environ.get("TINKER_TUTORIAL_MODEL")
    _folders.append(tempfile.TemporaryDirectory(prefix="tinker-tutorial-", ignore_cleanup_errors=True))
    runs = Path(_folders[-1].name)
    base_url = os.environ.get("TINKER_BASE_URL")
    if base_url:
        name = wanted or await _first_model()
        return Server(base_url, name, "chat_template", 2e-2 if "tiny" in name else 5e-4, runs)
    kind = wanted or "tiny"
    if kind not in _MAKERS:
        raise ValueError(f"model={kind!r}: choose one of {', '.join(_MAKERS)}, or set TINKER_BASE_URL to a server")
    folder = await _model_folder(kind)
    job = await _open.enter_async_context(ServerJob.start(_runtime_yaml(folder, runs), runs, label="backend"))
    os.environ["TINKER_BASE_URL"] = job.base_url
    return Server(job.base_url, folder.name, "chat_template", 2e-2 if kind == "tiny" else 5e-4, runs)


async def _first_model() -> str:
    capabilities = await tinker.RestClient().get_server_capabilities()
    names = [entry.model_name for entry in capabilities.supported_models if entry.model_name]
    if not names:
        raise ValueError(f"the server at {os.environ['TINKER_BASE_URL']} serves no model; give connect(model=...)")
    return names[0]


async def _model_folder(kind: str) -> Path:
    """The model, made on first use where the cookbook looks for tokenizers too."""
    if importlib.util.find_spec("tinker_backend") is None:
        raise ValueError("tinker-backend is not installed here; install it, or set TINKER_BASE_URL to a server")
    models = Path(os.environ.setdefault("TINKER_MODELS_DIR", str(Path.home() / ".cache/tinker-backend/models")))
    folder = models / _FOLDERS[kind]
    if not (folder / "config.json").is_file():
        module, *options = _MAKERS[kind]
        made = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *options, "--out", str(folder), stdout=asyncio.subprocess.DEVNULL
        )
        if await made.wait() != 0:
            raise ValueError(f"{module} could not make {folder}; its message is above")
    return folder


def _runtime_yaml(model: Path, folder: Path) -> Path:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = {"pretrain": str(model), "model_name": model.name, "sequence_length": 2048}
    (folder / "engine.yaml").write_text(yaml.safe_dump(engine))
    runtime = {"backend": {"port": port}, "runtime": {"engine": "engine.yaml"}, "ledger": {"url": "memory"}}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    return folder / "runtime.yaml"
