"""README of a published model."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    tags = [*config.tags, "tinker", *(["lora", "peft"] if adapter else [])]
    lines += ["pipeline_tag: text-generation", "tags:", *(f"- {tag}" for tag in dict.fromkeys(tags))]
    title = repo_id.split("/")[-1] if repo_id else config.base_model
    lines += [f"library_name: {'peft' if adapter else 'transformers'}", "---", "", f"# {title}", ""]
    kind = "A LoRA adapter for" if adapter else "A fine-tuned version of"
    lines.append(f"{kind} [{config.base_model}](https://huggingface.co/{config.base_model}), trained with rock-tinker.")
    return ModelCard("\n".join(lines) + "\n")
