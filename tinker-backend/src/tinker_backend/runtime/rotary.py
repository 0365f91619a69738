"""Rotary position embeddings: frequency tables for the scalings in use, and the rotation itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tinker_backend.runtime.architecture import Architecture
from tinker_backend.runtime.autograd import apply


def rotary_tables(architecture: Architecture, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines as ``rotate`` takes them, float32 (length, rotary_dim)."""
    frequencies, scale = _frequencies(architecture.rotary_dim, architecture.rope, architecture.max_positions)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat((cos, cos), -1).to(device), torch.cat((-sin, sin), -1).to(device)


def _frequencies(dim: int, rope: dict[str, Any], max_positions: int) -> tuple[Tensor, float]:
    base = float(rope["rope_theta"])
    frequencies = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim)
    kind = rope["rope_type"]
    if kind == "linear":
        return frequencies / float(rope["factor"]), 1.0
    if kind == "llama3":
        return _llama3(frequencies, rope), 1.0
    if kind == "yarn":
        return _yarn(frequencies, dim, base, rope, max_positions)
    return frequencies, 1.0


def _llama3(frequencies: Tensor, rope: dict[str, Any]) -> Tensor:
    """Llama 3.1: long wavelengths are stretched by ``factor``, short ones kept, those between are blended."""
    factor, low, high = float(rope["factor"]), float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    context = float(rope["original_max_position_embeddings"])
    wavelength = 2 * math.pi / frequencies
    blend = (context / wavelength - low) / (high - low)
    blended = (1 - blend) * frequencies / factor + blend * frequencies
    result = torch.where(wavelength > context / low, frequencies / factor, frequencies)
    between = (wavelength <= context / low) & (wavelength >= context / high)
    return torch.where(between, blended, result)


def _yarn(frequencies: Tensor, dim: int, base: float, rope: dict[str, Any], max_positions: int) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071): interpolates low frequencies, keeps high ones, scales the attention."""
    factor = float(rope["factor"])
    context = float(rope.get("original_max_position_embeddings") or max_positions)

    def attention_scale(scale: float, weight: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * weight * math.log(scale) + 1.0

    scale = rope.get("attention_factor")
    if scale is None:
        mscale, mscale_all = rope.get("mscale"), rope.get("mscale_all_dim")
        if mscale and mscale_all:
            scale = attention_scale(factor, mscale) / attention_scale(factor, mscale_all)
        else:
            scale = attention_scale(factor)

    def correction(rotations: float) -> float:
        return dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = correction(float(rope.get("beta_fast") or 32))
    high = correction(float(rope.get("beta_slow") or 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
    keep = 1 - ramp
    return frequencies / factor * (1 - keep) + frequencies * keep, float(scale)


def rotate(x_THd: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the first ``cos.shape[-1]`` features of every head; cos and sin are (T, 1, rotary_dim).

    Feature i of the first half is paired with feature i of the second; the sines of the first half are negative.
    """
    return apply(_Rotate, x_THd, cos, sin) if torch.is_grad_enabled() else _rotated(x_THd, cos, sin)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    size = cos.shape[-1]
    turned = (x if size == x.shape[-1] else x[..., :size]).float()
    half = size // 2
    swapped = torch.cat((turned[..., half:], turned[..., :half]), -1)
    out = (turned * cos).addcmul_(swapped, sin).to(x.dtype)
    return out if size == x.shape[-1] else torch.cat((out, x[..., size:]), -1)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        # The transposed rotation, times the same scale, turns the other way.
        return _rotated(grad, cos, -sin), None, None
