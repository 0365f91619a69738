"""The decoder as modules that FSDP2 shards: one module a layer, and a root with embeddings, last norm, head and losses.

The computation is that of ``runtime.decoder``: a module only holds its layer's fused weights, gathers them when it is
called, and hands them over. Head and losses are part of the root's forward, because their gradient is made there, chunk by
chunk, while the head's weights are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from tinker_backend.runtime.autograd import apply
from tinker_backend.runtime.base_model import read_weights
from tinker_backend.runtime.decoder import Adapters, Attend, Decoder
from tinker_backend.runtime.head import Head
from tinker_backend.runtime.lora import AdapterSegment

LossOfHidden = Callable[[Head, Tensor, Tensor | None, Tensor | None], Tensor | None]
"""(head, hidden (T, D), head weight gradient to add to, head bias gradient) -> d loss / d hidden, None without one."""


@dataclass(frozen=True)
class ShardingOptions:
    """How weights are sharded and computed with."""

    mesh: DeviceMesh
    dtype: torch.dtype
    """Of the computation; trained weights are kept in float32."""
    reduce_dtype: torch.dtype = torch.float32
    reshard_after_forward: bool = True
    offload: bool = False


class _Weights(nn.Module):
    """Parameters under the dotted names of ``Architecture.plan``."""

    def __init__(self, weights: Mapping[str, Tensor], trained: bool) -> None:
        super().__init__()
        self.names = {name: name.replace(".", "__") for name in weights}
        for name, tensor in weights.items():
            self.register_parameter(self.names[name], nn.Parameter(tensor, requires_grad=trained))

    def gathered(self) -> dict[str, Tensor]:
        """The weights by their own names; whole tensors while the module computes."""
        return {name: getattr(self, attribute) for name, attribute in self.names.items()}


class _Layer(_Weights):
    def __init__(self, decoder: Decoder, layer: int, weights: Mapping[str, Tensor], trained: bool) -> None:
        super().__init__(weights, trained)
        self.decoder, self.layer = decoder, layer

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor] | None,
        attend: Attend,
        adapters: Adapters,
        checkpointing: bool,
    ) -> Tensor:
        arguments = (self.gathered(), x, self.layer, rotation, attend, adapters)
        if checkpointing and torch.is_grad_enabled():
            out: Tensor = checkpoint(self.decoder.block, *arguments, use_reentrant=False, preserve_rng_state=False)
            return out
        return self.decoder.block(*arguments)


class ShardedDecoder(_Weights):
    """Root module. Made by ``load_sharded``."""

    def __init__(self, decoder: Decoder, weights: Mapping[str, Tensor], layers: list[nn.Module], trained: bool) -> None:
        super().__init__(weights, trained)
        self.decoder, self.trained = decoder, trained
        self.layers = nn.ModuleList(layers)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend,
        segments: list[AdapterSegment],
        losses: LossOfHidden,
        checkpointing: bool,
    ) -> Tensor:
        """Evaluates ``losses`` on the hidden states; ``backward`` on the returned scalar adds all gradients."""

        def block(
            _: Mapping[str, Tensor], x: Tensor, layer: int, rotation: Any, attend: Attend, to: Adapters
        ) -> Tensor:
            out: Tensor = self.layers[layer](x, rotation, attend, to, checkpointing)
            return out

        weights, adapters = self.gathered(), Adapters(segments, self.trained)
        hidden = self.decoder.hidden(weights, tokens, positions, attend, adapters, block=block)
        tied = self.decoder.architecture.tied
        weight, bias = weights["embed" if tied else "head.weight"], weights.get("head.bias")
        with torch.no_grad():
            whole = {name: tensor.detach() for name, tensor in weights.items()}
            head = self.decoder.head(self.decoder.with_head(whole), segments)
        if not torch.is_grad_enabled():
            losses(head, hidden, None, None)
            return hidden.new_zeros(())
        return apply(_HeadLoss, hidden, weight, bias, head, losses)

    def shards(self) -> dict[str, nn.Parameter]:
        """Parameters (DTensors) by the names of ``Architecture.plan``."""
        named: dict[str, nn.Parameter] = {}
        for module in (self, *self.layers):
            assert isinstance(module, _Weights)
            for name, attribute in module.names.items():
                named[name] = getattr(module, attribute)
        return named


class _HeadLoss(torch.autograd.Function):
    """Losses whose gradients are made in the forward, while logits of a chunk exist."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, head: Head, losses: LossOfHidden
    ) -> Tensor:
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if weight.requires_grad else None
        bias_grad = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and bias.requires_grad else None
        grad = losses(head, hidden, weight_grad, bias_grad)
        ctx.hidden_grad = torch.zeros_like(hidden) if grad is None else grad
        ctx.weight_grad = None if weight_grad is None else weight_grad.to(weight.dtype)
        ctx.bias_grad = None if bias is None or bias_grad is None else bias_grad.to(bias.dtype)
        return hidden.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        return ctx.hidden_grad, ctx.weight_grad, ctx.bias_grad, None, None


def load_sharded(folder: Path, decoder: Decoder, options: ShardingOptions, trained: bool) -> ShardedDecoder:
    """Reads a model folder layer by layer and shards each at once, so no process ever holds the whole model."""
    dtype = torch.float32 if trained else options.dtype
    device = torch.device(options.mesh.device_type)
    architecture = decoder.architecture

    def read(wanted: Callable[[str], bool]) -> dict[str, Tensor]:
        return read_weights(folder, architecture, dtype, device, wanted)

    policy = MixedPrecisionPolicy(
        param_dtype=options.dtype if trained and options.dtype != torch.float32 else None,
        reduce_dtype=options.reduce_dtype if trained and options.dtype != torch.float32 else None,
        cast_forward_inputs=False,
    )
    offload = CPUOffloadPolicy() if options.offload else OffloadPolicy()
    layers: list[nn.Module] = []
    for layer in range(architecture.layers):
        prefix = f"layers.{layer}."
        module = _Layer(decoder, layer, read(lambda name, p=prefix: name.startswith(p)), trained)  # type: ignore[misc]
        fully_shard(
            module,
            mesh=options.mesh,
            reshard_after_forward=options.reshard_after_forward,
            mp_policy=policy,
            offload_policy=offload,
        )
        layers.append(module)
    root = ShardedDecoder(decoder, read(lambda name: not name.startswith("layers.")), layers, trained)
    fully_shard(root, mesh=options.mesh, reshard_after_forward=False, mp_policy=policy, offload_policy=offload)
    for part in (root, *layers):
        assert isinstance(part, FSDPModule)
        # Losses are sums, so gradients of ranks are added, not averaged; gloo knows no scaled sum.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    return root
