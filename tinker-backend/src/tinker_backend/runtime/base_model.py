"""Base models: weights read from a Hugging Face folder into fused tensors, with tokenizer and public names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor

from tinker_backend.runtime.architecture import Architecture, UnsupportedModel, read_architecture
from tinker_backend.runtime.decoder import Decoder
from tinker_backend.runtime.roles import ModelCard


@dataclass(frozen=True)
class BaseModel:
    """A frozen base model. ``weights`` are never changed after loading."""

    name: str
    aliases: tuple[str, ...]
    folder: Path
    architecture: Architecture
    weights: Mapping[str, Tensor]
    decoder: Decoder
    dtype: torch.dtype
    device: torch.device
    context: int
    """Longest prompt + completion in tokens."""
    max_lora_rank: int

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The fast tokenizer of the folder; only stop strings need it."""
        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """End-of-sequence ids of ``generation_config.json``, else of ``config.json``."""
        path = self.folder / "generation_config.json"
        if path.is_file():
            eos = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            if eos is not None:
                return tuple(eos) if isinstance(eos, list) else (int(eos),)
        return self.architecture.eos_token_ids

    def card(self) -> ModelCard:
        """What the server tells clients about the model."""
        return ModelCard(
            name=self.name,
            path=str(self.folder),
            arch=self.architecture.name,
            vocab_size=self.architecture.vocab_size,
            max_context_length=self.context,
            tokenizer_path=str(self.folder),
            aliases=list(self.aliases),
            eos_token_ids=list(self.eos_token_ids),
            max_lora_rank=self.max_lora_rank,
            parameters=sum(torch.Size(shape).numel() for shape, _ in self.architecture.plan().values()),
        )


def load_base_model(
    folder: Path,
    name: str,
    aliases: list[str],
    dtype: torch.dtype,
    device: torch.device,
    sequence_length: int,
    max_lora_rank: int,
) -> BaseModel:
    """Reads a model folder. Raises UnsupportedModel."""
    architecture = read_architecture(folder)
    context = min(sequence_length, architecture.max_positions)
    decoder = Decoder(architecture, device, context)
    weights = decoder.with_head(read_weights(folder, architecture, dtype, device))
    return BaseModel(
        name, tuple(aliases), folder, architecture, weights, decoder, dtype, device, context, max_lora_rank
    )


def read_weights(
    folder: Path,
    architecture: Architecture,
    dtype: torch.dtype,
    device: torch.device,
    wanted: Callable[[str], bool] = lambda name: True,
) -> dict[str, Tensor]:
    """Fused weights of a Hugging Face folder in ``dtype``, those whose names are ``wanted``.

    Raises UnsupportedModel when a tensor is missing or misshaped.
    """
    files = sorted(folder.glob("*.safetensors"))
    files = [f for f in files if not f.name.startswith(("adapter_", "optimizer", "gradients"))]
    if not files:
        raise UnsupportedModel(f"{folder} holds no .safetensors file; convert the model to safetensors first")
    handles: list[Any] = [safe_open(str(file), framework="pt") for file in files]
    where = {name: handle for handle in handles for name in _names(handle)}
    # GPT-2 checkpoints of the first generation leave the prefix out.
    bare = {f"transformer.{name}": name for name in where if not name.startswith(("transformer.", "lm_head."))}
    fused: dict[str, Tensor] = {}
    for target, (shape, pieces) in architecture.plan().items():
        if not wanted(target):
            continue
        out = torch.empty(shape, dtype=dtype, device=device)
        for piece in pieces:
            source = piece.name if piece.name in where else bare.get(piece.name, piece.name)
            if source not in where:
                raise UnsupportedModel(
                    f"{folder}: tensor {piece.name} is missing; the folder is not a complete {architecture.name} model"
                )
            value = where[source].get_tensor(source)
            value = value.t() if piece.transposed else value
            if value.shape != out[piece.start : piece.stop].shape:
                raise UnsupportedModel(
                    f"{folder}: tensor {piece.name} has shape {tuple(value.shape)}, not {tuple(out[piece.start : piece.stop].shape)}"
                )
            out[piece.start : piece.stop] = value
        fused[target] = out
    return fused


def _names(handle: Any) -> list[str]:
    return list(handle.keys())


def unfuse(architecture: Architecture, fused: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Checkpoint tensors (Hugging Face names and orientation) of fused weights."""
    named: dict[str, Tensor] = {}
    for target, (_, pieces) in architecture.plan().items():
        for piece in pieces:
            part = fused[target][piece.start : piece.stop]
            named[piece.name] = (part.t() if piece.transposed else part).contiguous()
    return named
