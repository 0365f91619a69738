"""What a decoder family looks like: sizes, switches, and how its checkpoint tensors map to the fused weights used here.

One implementation (``decoder.py``) serves all families; an ``Architecture`` says which of its switches are on.
Weights are fused where they share their input (q, k, v; gate, up); a ``Piece`` says which checkpoint tensor fills which
rows, so loading and saving are the same table read in two directions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class UnsupportedModel(ValueError):
    """The model cannot be served; the message names the architecture and what would work."""


@dataclass(frozen=True)
class Piece:
    """Rows ``start:stop`` of a fused weight come from the checkpoint tensor ``name`` (``transposed``: stored in x out)."""

    name: str
    start: int
    stop: int
    transposed: bool = False


@dataclass(frozen=True)
class Projection:
    """A fused linear layer: rows per checkpoint module, in order. ``bias`` tells whether the modules have one."""

    in_features: int
    modules: tuple[tuple[str, int], ...]
    """(checkpoint module path, output features) in the order of the fused rows."""
    bias: bool = False
    transposed: bool = False

    @property
    def out_features(self) -> int:
        return sum(size for _, size in self.modules)


@dataclass(frozen=True)
class Architecture:
    """Sizes and switches of one decoder. Names of fused weights: see ``plan``."""

    name: str
    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    max_positions: int
    norm_eps: float
    tied: bool
    rms_norm: bool = True
    norm_offset: float = 0.0
    """Added to the norm weight (Gemma stores weight - 1)."""
    activation: str = "silu"
    gated: bool = True
    parallel: bool = False
    """Attention and MLP read the same norm and are added together (Phi)."""
    qk_norm: bool = False
    rotary_dim: int = 0
    rope: dict[str, Any] = field(default_factory=dict)
    learned_positions: bool = False
    embed_scale: float = 1.0
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    split_qkv: bool = True
    split_gate: bool = True
    eos_token_ids: tuple[int, ...] = ()

    def projection(self, layer: int, group: str) -> Projection:
        """The fused linear ``group`` (qkv, o, up, down) of a layer, or ``head``."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if group == "head":
            return Projection(self.hidden, (("lm_head", self.vocab_size),), self.head_bias)
        if self.name == "gpt2":
            at = f"transformer.h.{layer}."
            names = {"qkv": "attn.c_attn", "o": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
            sizes = {
                "qkv": (self.hidden, q + 2 * kv),
                "o": (q, self.hidden),
                "up": (self.hidden, self.intermediate),
                "down": (self.intermediate, self.hidden),
            }
            return Projection(sizes[group][0], ((at + names[group], sizes[group][1]),), True, True)
        at = f"model.layers.{layer}."
        if group == "qkv":
            modules: tuple[tuple[str, int], ...]
            if self.split_qkv:
                modules = tuple((f"{at}self_attn.{p}_proj", n) for p, n in (("q", q), ("k", kv), ("v", kv)))
            else:
                modules = ((f"{at}self_attn.qkv_proj", q + 2 * kv),)
            return Projection(self.hidden, modules, self.qkv_bias)
        if group == "o":
            return Projection(
                q, ((f"{at}self_attn.{'dense' if self.parallel else 'o_proj'}", self.hidden),), self.out_bias
            )
        if group == "up":
            if not self.gated:
                modules = ((f"{at}mlp.fc1", self.intermediate),)
            elif self.split_gate:
                modules = ((f"{at}mlp.gate_proj", self.intermediate), (f"{at}mlp.up_proj", self.intermediate))
            else:
                modules = ((f"{at}mlp.gate_up_proj", 2 * self.intermediate),)
            return Projection(self.hidden, modules, self.mlp_bias)
        if group == "down":
            return Projection(
                self.intermediate, ((f"{at}mlp.{'down_proj' if self.gated else 'fc2'}", self.hidden),), self.mlp_bias
            )
        raise KeyError(group)

    def plan(self) -> dict[str, tuple[tuple[int, ...], list[Piece]]]:
        """Fused weight name -> (shape, pieces). Vectors are one piece."""
        gpt2 = self.name == "gpt2"
        plan: dict[str, tuple[tuple[int, ...], list[Piece]]] = {}

        def vector(name: str, source: str, size: int) -> None:
            plan[name] = ((size,), [Piece(source, 0, size)])

        def norm(name: str, source: str, size: int) -> None:
            vector(f"{name}.weight", f"{source}.weight", size)
            if not self.rms_norm:
                vector(f"{name}.bias", f"{source}.bias", size)

        def linear(name: str, projection: Projection) -> None:
            weights, biases, row = [], [], 0
            for module, size in projection.modules:
                weights.append(Piece(f"{module}.weight", row, row + size, projection.transposed))
                biases.append(Piece(f"{module}.bias", row, row + size))
                row += size
            plan[f"{name}.weight"] = ((row, projection.in_features), weights)
            if projection.bias:
                plan[f"{name}.bias"] = ((row,), biases)

        embed = "transformer.wte.weight" if gpt2 else "model.embed_tokens.weight"
        plan["embed"] = ((self.vocab_size, self.hidden), [Piece(embed, 0, self.vocab_size)])
        if self.learned_positions:
            shape = (self.max_positions, self.hidden)
            plan["positions"] = (shape, [Piece("transformer.wpe.weight", 0, self.max_positions)])
        for layer in range(self.layers):
            at = f"transformer.h.{layer}." if gpt2 else f"model.layers.{layer}."
            here = f"layers.{layer}."
            norm(f"{here}attn_norm", at + ("ln_1" if gpt2 else "input_layernorm"), self.hidden)
            for group in ("qkv", "o", "up", "down"):
                linear(here + group, self.projection(layer, group))
            if self.qk_norm:
                vector(f"{here}q_norm.weight", f"{at}self_attn.q_norm.weight", self.head_dim)
                vector(f"{here}k_norm.weight", f"{at}self_attn.k_norm.weight", self.head_dim)
            if not self.parallel:
                norm(f"{here}mlp_norm", at + ("ln_2" if gpt2 else "post_attention_layernorm"), self.hidden)
        final = "transformer.ln_f" if gpt2 else ("model.final_layernorm" if self.parallel else "model.norm")
        norm("final_norm", final, self.hidden)
        if not self.tied:
            plan["head.weight"] = ((self.vocab_size, self.hidden), [Piece("lm_head.weight", 0, self.vocab_size)])
        if self.head_bias:
            vector("head.bias", "lm_head.bias", self.vocab_size)
        return plan


SUPPORTED = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "GemmaForCausalLM": "gemma",
    "PhiForCausalLM": "phi",
    "Phi3ForCausalLM": "phi3",
    "GPT2LMHeadModel": "gpt2",
}
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_ROPE_KINDS = ("default", "linear", "llama3", "yarn")


def read_architecture(folder: Path) -> Architecture:
    """Reads ``config.json`` of a model folder.

    Raises UnsupportedModel, which names the architecture, for anything that would not be computed exactly.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    named = (config.get("architectures") or [f"model_type {config.get('model_type')!r}"])[0]
    if named not in SUPPORTED:
        raise UnsupportedModel(
            f"architecture {named} of {folder} is not supported by the torch strategy; supported: {', '.join(sorted(SUPPORTED))}"
        )
    family = SUPPORTED[named]
    if config.get("quantization_config"):
        raise UnsupportedModel(f"{folder}: quantised weights are not supported; give the model in bfloat16 or float32")
    architecture = _gpt2(config) if family == "gpt2" else _rotary(family, named, config)
    _refuse_unknown_switches(named, config)
    return architecture


def _refuse_unknown_switches(named: str, config: dict[str, Any]) -> None:
    refused = {
        "qk_layernorm": False,
        "use_bidirectional_attention": False,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "num_local_experts": 0,
        "embedding_multiplier": 0,
    }
    for key, off in refused.items():
        if config.get(key, off) not in (off, None):
            raise UnsupportedModel(f"architecture {named} with {key}={config[key]!r} is not supported")


def _activation(named: str, name: str) -> str:
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(f"architecture {named}: activation {name!r} is not supported")
    return _ACTIVATIONS[name]


def _eos(config: dict[str, Any]) -> tuple[int, ...]:
    eos = config.get("eos_token_id")
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (int(eos),)


def _gpt2(config: dict[str, Any]) -> Architecture:
    hidden, heads = config["n_embd"], config["n_head"]
    return Architecture(
        name="gpt2",
        vocab_size=config["vocab_size"],
        hidden=hidden,
        layers=config["n_layer"],
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=config.get("n_inner") or 4 * hidden,
        max_positions=config.get("n_positions") or config.get("n_ctx") or 1024,
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        tied=config.get("tie_word_embeddings", True),
        rms_norm=False,
        activation=_activation("GPT2LMHeadModel", config.get("activation_function", "gelu_new")),
        gated=False,
        learned_positions=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        split_qkv=False,
        eos_token_ids=_eos(config),
    )


def _rotary(family: str, named: str, config: dict[str, Any]) -> Architecture:
    heads = config["num_attention_heads"]
    hidden = config["hidden_size"]
    head_dim = config.get("head_dim") or hidden // heads
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    if rope["rope_type"] not in _ROPE_KINDS:
        raise UnsupportedModel(
            f"architecture {named}: rope_type {rope['rope_type']!r} is not supported; supported: {', '.join(_ROPE_KINDS)}"
        )
    partial = (
        rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or (0.5 if family == "phi" else 1.0)
    )
    max_positions = config.get("max_position_embeddings", 2048)
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True):
        # Within the window, windowed and full attention are the same; beyond it they are not.
        max_positions = min(max_positions, int(window))
    bias = bool(config.get("attention_bias", False))
    phi = family == "phi"
    return Architecture(
        name=family,
        vocab_size=config["vocab_size"],
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate=config["intermediate_size"],
        max_positions=max_positions,
        norm_eps=config.get("layer_norm_eps" if phi else "rms_norm_eps", 1e-6),
        tied=config.get("tie_word_embeddings", family == "gemma"),
        rms_norm=not phi,
        norm_offset=1.0 if family == "gemma" else 0.0,
        activation=_activation(named, config.get("hidden_activation") or config.get("hidden_act", "silu")),
        gated=not phi,
        parallel=phi,
        qk_norm=family == "qwen3",
        rotary_dim=int(head_dim * partial),
        rope=rope,
        embed_scale=hidden**0.5 if family == "gemma" else 1.0,
        qkv_bias=bias or family in ("qwen2", "phi"),
        out_bias=bias or phi,
        mlp_bias=bool(config.get("mlp_bias", False)) or phi,
        head_bias=phi,
        split_qkv=family != "phi3",
        split_gate=family != "phi3",
        eos_token_ids=_eos(config),
    )
