"""Pushing adapters to the Hugging Face hub."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from .._download import download_checkpoint
from ..types import ParsedCheckpointTinkerPath
from .output import CliError

_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def push_to_hub(
    checkpoint: ParsedCheckpointTinkerPath,
    *,
    repo: str,
    public: bool,
    revision: str | None,
    commit_message: str | None,
    create_pr: bool,
    allow_pattern: tuple[str, ...],
    ignore_pattern: tuple[str, ...],
    no_model_card: bool,
) -> dict[str, Any]:
    """Download the adapter and upload its folder; raises CliError for a checkpoint that is no adapter."""
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise CliError("push-hf needs huggingface_hub", "Install it with: pip install huggingface_hub") from error
    with tempfile.TemporaryDirectory(prefix="tinker-push-") as temporary:
        folder = Path(temporary) / "adapter"
        download_checkpoint(checkpoint.tinker_path, folder)
        config = _check_adapter(folder, checkpoint.tinker_path)
        if not no_model_card and not (folder / "README.md").exists():
            (folder / "README.md").write_text(_model_card(config, checkpoint.tinker_path), encoding="utf-8")
        api = HfApi()
        repo_id = api.create_repo(repo, private=not public, exist_ok=True).repo_id
        if revision and not create_pr:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            revision=revision,
            commit_message=commit_message or f"Adapter from {checkpoint.tinker_path}",
            create_pr=create_pr,
            allow_patterns=list(allow_pattern) or None,
            ignore_patterns=list(ignore_pattern) or None,
        )
    result = {"checkpoint_path": checkpoint.tinker_path, "repo_id": repo_id, "revision": revision, "public": public}
    return {key: value for key, value in result.items() if value is not None}


def _check_adapter(folder: Path, tinker_path: str) -> dict[str, Any]:
    config = folder / "adapter_config.json"
    if not config.exists() or not any((folder / name).exists() for name in _ADAPTER_WEIGHTS):
        raise CliError(
            f"{tinker_path} is not an adapter", "It needs adapter_config.json and adapter_model.safetensors."
        )
    loaded = json.loads(config.read_text(encoding="utf-8"))
    return loaded if isinstance(loaded, dict) else {}


def _model_card(config: dict[str, Any], tinker_path: str) -> str:
    base = config.get("base_model_name_or_path") or "unknown"
    return (
        f"---\nbase_model: {base}\nlibrary_name: peft\ntags:\n- tinker\n- lora\n---\n\n"
        f"# Adapter for {base}\n\nLoRA of rank {config.get('r', '?')}, trained with Tinker (`{tinker_path}`).\n"
    )
