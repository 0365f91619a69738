"""The decoder forward that trainer and sampler share.

Tokens of all sequences are packed into one dimension T. What attention reads (the pack itself, or a cache) and which
adapters apply to which rows are given from outside, so training, prefill and decode are the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tinker_backend.runtime.architecture import Architecture
from tinker_backend.runtime.head import Head
from tinker_backend.runtime.kernels import activation, gated_activation, layer_norm, rms_norm
from tinker_backend.runtime.lora import AdapterSegment, lora_linear
from tinker_backend.runtime.packed_weights import SUFFIX
from tinker_backend.runtime.rotary import rotary_tables, rotate

Weights = Mapping[str, Tensor]
PRECISE_HEAD = "head.float32"
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q (T, H, d), k (T, K, d), v (T, K, d)) -> (T, H * d)"""


Block = Callable[..., Tensor]
"""(weights, x (T, D), layer, rotation, attend, adapters) -> (T, D): one decoder layer."""


@dataclass(frozen=True)
class Adapters:
    """How rows of the batch use adapters. ``trained`` True: base weights are leaves that receive gradients themselves."""

    segments: list[AdapterSegment]
    trained: bool = False


class Decoder:
    """Forward passes of one architecture with given fused weights (see ``Architecture.plan``)."""

    def __init__(self, architecture: Architecture, device: torch.device, context: int) -> None:
        self.architecture = architecture
        self.scale = architecture.head_dim**-0.5
        self.context = context
        if architecture.rotary_dim:
            self._cos, self._sin = rotary_tables(architecture, context, device)

    def hidden(
        self,
        weights: Weights,
        tokens_T: Tensor,
        positions_T: Tensor,
        attend: Attend,
        adapters: Adapters,
        checkpointing: bool = False,
        block: Block | None = None,
    ) -> Tensor:
        """Final hidden states (T, hidden), after the last norm. ``checkpointing`` recomputes layers in backward.

        ``block`` computes a layer elsewhere, where ``weights`` hold the embeddings and the last norm alone.
        """
        compute = block or self.block
        a = self.architecture
        # The residual stream is float32 whatever the weights are: rounding it after every layer is what would make
        # trainer and sampler differ most.
        x = F.embedding(tokens_T, weights["embed"]).float()
        if a.embed_scale != 1.0:
            x = x * torch.tensor(a.embed_scale, dtype=weights["embed"].dtype).float()
        if a.learned_positions:
            x = x + F.embedding(positions_T, weights["positions"])
        if torch.is_grad_enabled() and not x.requires_grad:
            # The adapters are no tensors of the graph; this is what makes backward reach them.
            x.requires_grad_(True)
        rotation = None
        if a.rotary_dim:
            rotation = (self._cos[positions_T].unsqueeze(1), self._sin[positions_T].unsqueeze(1))
        for layer in range(a.layers):
            if checkpointing and torch.is_grad_enabled():
                x = checkpoint(
                    compute,
                    weights,
                    x,
                    layer,
                    rotation,
                    attend,
                    adapters,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            else:
                x = compute(weights, x, layer, rotation, attend, adapters)
        last = {n: weights[n].float() for n in ("final_norm.weight", "final_norm.bias") if n in weights}
        return self._norm(last, x, "final_norm")

    def head(self, weights: Weights, segments: list[AdapterSegment]) -> Head:
        """The output projection, in float32 where ``with_head`` made one."""
        narrow = weights["embed"] if self.architecture.tied else weights["head.weight"]
        key, used = (self.architecture.layers, "head"), self.head_name(weights)
        packed = weights.get(used + SUFFIX)
        return Head(weights[used], narrow, weights.get("head.bias"), segments, key, packed)

    def head_name(self, weights: Weights) -> str:
        """Name of the weight that makes the logits."""
        return PRECISE_HEAD if PRECISE_HEAD in weights else "embed" if self.architecture.tied else "head.weight"

    def projection_names(self, weights: Weights) -> list[str]:
        """Names of all weights that rows are multiplied with."""
        layers = range(self.architecture.layers)
        names = [f"layers.{layer}.{group}.weight" for layer in layers for group in ("qkv", "o", "up", "down")]
        return [*names, self.head_name(weights)]

    def with_head(self, weights: Weights) -> Weights:
        """The weights, on a CPU with a float32 copy of a narrower output embedding.

        Logits that are rounded to bfloat16 are wrong by up to 0.06, and differently in trainer and sampler.
        """
        head = weights["embed"] if self.architecture.tied else weights["head.weight"]
        if head.device.type != "cpu" or head.dtype == torch.float32:
            return weights
        return {**weights, PRECISE_HEAD: head.detach().float()}

    def _norm(self, weights: Weights, x: Tensor, name: str) -> Tensor:
        a = self.architecture
        if a.rms_norm:
            return rms_norm(x, weights[f"{name}.weight"], a.norm_eps, a.norm_offset)
        return layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], a.norm_eps)

    def _linear(self, weights: Weights, x: Tensor, layer: int, group: str, adapters: Adapters) -> Tensor:
        name = f"layers.{layer}.{group}"
        weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
        if adapters.trained:
            return F.linear(x, weight, bias)
        packed = weights.get(f"{name}.weight{SUFFIX}")
        return lora_linear(x, weight, bias, adapters.segments, (layer, group), packed)

    def block(
        self,
        weights: Weights,
        x: Tensor,
        layer: int,
        rotation: tuple[Tensor, Tensor] | None,
        attend: Attend,
        adapters: Adapters,
    ) -> Tensor:
        """One decoder layer: (T, D) -> (T, D)."""
        a = self.architecture
        normed = self._norm(weights, x, f"layers.{layer}.attn_norm")
        attended = self._attention(weights, normed, layer, rotation, attend, adapters)
        if a.parallel:
            return x + attended + self._mlp(weights, normed, layer, adapters)
        x = x + attended
        return x + self._mlp(weights, self._norm(weights, x, f"layers.{layer}.mlp_norm"), layer, adapters)

    def _attention(
        self,
        weights: Weights,
        normed: Tensor,
        layer: int,
        rotation: tuple[Tensor, Tensor] | None,
        attend: Attend,
        adapters: Adapters,
    ) -> Tensor:
        a = self.architecture
        qkv = self._linear(weights, normed, layer, "qkv", adapters)
        qkv = qkv.view(-1, a.heads + 2 * a.kv_heads, a.head_dim)
        v = qkv[:, a.heads + a.kv_heads :]
        if a.qk_norm:
            q = rms_norm(qkv[:, : a.heads], weights[f"layers.{layer}.q_norm.weight"], a.norm_eps, 0.0)
            k = rms_norm(
                qkv[:, a.heads : a.heads + a.kv_heads], weights[f"layers.{layer}.k_norm.weight"], a.norm_eps, 0.0
            )
            if rotation is not None:
                q, k = rotate(q, *rotation), rotate(k, *rotation)
        else:
            qk = qkv[:, : a.heads + a.kv_heads]
            if rotation is not None:
                qk = rotate(qk, *rotation)
            q, k = qk[:, : a.heads], qk[:, a.heads :]
        return self._linear(weights, attend(layer, q, k, v), layer, "o", adapters)

    def _mlp(self, weights: Weights, normed: Tensor, layer: int, adapters: Adapters) -> Tensor:
        a = self.architecture
        wide = self._linear(weights, normed, layer, "up", adapters)
        inner = gated_activation(wide, a.activation) if a.gated else activation(wide, a.activation)
        return self._linear(weights, inner, layer, "down", adapters)
