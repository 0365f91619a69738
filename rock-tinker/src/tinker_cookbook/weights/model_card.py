"""README of a published model."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from huggingface_hub import ModelCard


@dataclass(frozen=True)
class ModelCardConfig:
    """What the card says."""

    base_model: str
    datasets: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    license: str | None = None
    language: list[str] = field(default_factory=lambda: ["en"])


def generate_model_card(
    *, config: ModelCardConfig, repo_id: str | None = None, model_path: str | None = None
) -> ModelCard:
    """The card of a model, as an object that the hub's library can check, save and upload; ``str(card)`` is its text."""
    from huggingface_hub import ModelCard

    adapter = model_path is not None and (Path(model_path) / "adapter_config.json").is_file()
    lines = ["---", f"base_model: {config.base_model}"]
    if config.license:
        lines.append(f"license: {config.license}")
    for name, values in (("language", config.language), ("datasets", config.datasets)):
        if values:
            lines += [f"{name}:", *(f"- {value}" for value in values)]
    tags = [*config.tags, "tinker", "tinker-cookbook", *(["lora", "peft"] if adapter else [])]
    lines += ["pipeline_tag: text-generation", "tags:", *(f"- {tag}" for tag in dict.fromkeys(tags))]
    lines += [f"library_name: {'peft' if adapter else 'transformers'}", "---"]
    base = f"[{config.base_model}](https://huggingface.co/{config.base_model})"
    lines += ["", f"# {repo_id or config.base_model}", ""]
    lines += [f"{'A LoRA adapter for' if adapter else 'A fine-tuned version of'} {base}, trained with rock-tinker.", ""]
    lines += [
        "## Model",
        "",
        f"- Base model: {base}",
        f"- Format: {'LoRA adapter (PEFT)' if adapter else 'Merged model'}",
        "",
    ]
    lines += ["## Usage", "", "```python", *_usage(config.base_model, repo_id, adapter), "```", ""]
    lines += ["## Versions", "", *(f"- {name}: {version}" for name, version in _versions(adapter))]
    return ModelCard("\n".join(lines) + "\n")


def _usage(base_model: str, repo_id: str | None, adapter: bool) -> list[str]:
    """Lines of Python that load the model."""
    name = repo_id or "<repository>"
    if not adapter:
        return [
            "from transformers import AutoModelForCausalLM",
            "",
            f'model = AutoModelForCausalLM.from_pretrained("{name}")',
        ]
    return [
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM",
        "",
        f'base = AutoModelForCausalLM.from_pretrained("{base_model}")',
        f'model = PeftModel.from_pretrained(base, "{name}")',
    ]


def _versions(adapter: bool) -> list[tuple[str, str]]:
    """What the model was made with, as far as it is installed."""
    found = []
    for name in ("rock-tinker", "transformers", "torch", *(["peft"] if adapter else [])):
        with contextlib.suppress(PackageNotFoundError):
            found.append((name, version(name)))
    return found
