"""Sizes of a decoder that memory and traffic depend on, read from ``config.json`` or named."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModelShape:
    """A decoder with or without experts. ``intermediate`` is that of one expert where there are experts."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    experts: int = 0
    experts_per_token: int = 0

    @property
    def embedding(self) -> int:
        """Parameters of one embedding table."""
        return self.vocab * self.hidden

    @property
    def attention(self) -> int:
        """Parameters of one layer's attention, without norms."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def mlp(self) -> int:
        """Parameters of one layer's gated MLP: all experts and their router, or the dense one."""
        one = 3 * self.hidden * self.intermediate
        return one * self.experts + self.hidden * self.experts if self.experts else one

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        return self.attention + self.mlp + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.layer + self.embedding * (1 if self.tied else 2) + self.hidden

    @property
    def active(self) -> int:
        """Parameters that one token passes through."""
        if not self.experts:
            return self.parameters
        idle = 3 * self.hidden * self.intermediate * (self.experts - self.experts_per_token)
        return self.parameters - self.layers * idle

    def lora(self, rank: int, unembed: bool = True) -> int:
        """Parameters of an adapter on every linear layer. Experts share one adapter a projection."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 4 * self.hidden + 2 * q + 2 * kv
        mlp = 3 * (self.hidden + self.intermediate)
        return rank * (self.layers * (attention + mlp) + (self.hidden + self.vocab if unembed else 0))

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in 16 bits, all layers."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim


QWEN3_4B = ModelShape("4B", 36, 2560, 32, 8, 128, 9728, 151936, True)
QWEN3_32B = ModelShape("32B", 64, 5120, 64, 8, 128, 25600, 151936, False)
QWEN3_235B = ModelShape("235B-A22B", 94, 4096, 64, 4, 128, 1536, 151936, False, 128, 8)
PRESETS = {shape.name: shape for shape in (QWEN3_4B, QWEN3_32B, QWEN3_235B)}


def known_shape(hub_id: str) -> ModelShape | None:
    """The shape of a Qwen3 model out of its hub id (``Qwen/Qwen3-4B-Instruct-2507``); None for any other."""
    named = re.match(r"qwen3-(\d+b(?:-a\d+b)?)(?![\w.])", hub_id.rsplit("/", 1)[-1], re.IGNORECASE)
    return PRESETS.get(named[1].upper()) if named else None


def read_shape(folder: Path) -> ModelShape:
    """The shape of a model folder. Raises OSError or KeyError when ``config.json`` is missing or of another family."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    experts = config.get("num_experts") or config.get("num_local_experts") or 0
    return ModelShape(
        name=folder.name,
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config.get("moe_intermediate_size") if experts else config["intermediate_size"],
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        experts=experts,
        experts_per_token=config.get("num_experts_per_tok") or 0,
    )
