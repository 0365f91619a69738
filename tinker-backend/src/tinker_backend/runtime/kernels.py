"""Elementwise pieces of a decoder as autograd functions that keep little and compute in float32 inside."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinker_backend.runtime.autograd import apply


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """``x / rms(x) * (weight + offset)`` over the last dimension, computed in float32, returned in weight.dtype."""
    if torch.is_grad_enabled():
        return apply(_RmsNorm, x, weight, eps, offset)
    return _rms_norm(x, weight, eps, offset)[0]


def _scale(weight: Tensor, offset: float) -> Tensor:
    return weight.float() + offset if offset else weight.float()


def _rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    wide = x.float()
    inverse = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (wide * inverse).mul_(_scale(weight, offset)).to(weight.dtype), inverse


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        out, inverse = _rms_norm(x, weight, eps, offset)
        ctx.save_for_backward(x, weight, inverse)
        ctx.offset = offset
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, weight, inverse = ctx.saved_tensors
        normed = x.float() * inverse
        wide = grad.float()
        weight_grad = None
        if ctx.needs_input_grad[1]:
            weight_grad = (wide * normed).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
        scaled = wide * _scale(weight, ctx.offset)
        mean = (scaled * normed).mean(-1, keepdim=True)
        return scaled.addcmul_(normed, mean, value=-1).mul_(inverse).to(x.dtype), weight_grad, None, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Plain layer norm over the last dimension, computed in x.dtype, returned in weight.dtype."""
    return F.layer_norm(x, (x.shape[-1],), weight.to(x.dtype), bias.to(x.dtype), eps).to(weight.dtype)


def gated_activation(gate_up: Tensor, kind: str) -> Tensor:
    """``act(gate) * up`` of a (..., 2 I) tensor that holds gate and up side by side."""
    if kind == "silu" and torch.is_grad_enabled():
        return apply(_SiluGate, gate_up)
    gate, up = gate_up.chunk(2, -1)
    return activation(gate, kind).mul_(up) if not torch.is_grad_enabled() else activation(gate, kind) * up


def activation(x: Tensor, kind: str) -> Tensor:
    """The named activation: silu, gelu, gelu_tanh or relu."""
    if kind == "silu":
        return F.silu(x)
    if kind == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


class _SiluGate(torch.autograd.Function):
    """silu(gate) * up, recomputed in backward so that only the input is kept."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        result = torch.empty_like(gate_up)
        size = gate.shape[-1]
        torch.mul(grad, F.silu(gate), out=result[..., size:])
        result[..., :size] = torch.ops.aten.silu_backward(grad * up, gate)
        return result
