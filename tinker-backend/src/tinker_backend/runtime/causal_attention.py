"""Causal attention of equally long sequences on a CPU, forward and backward, from batched matrix products.

The fused CPU kernel of torch spends most of a training step in its backward, and expands grouped keys and values. Here
the query heads of one key head stand side by side as rows, queries go in blocks that see only keys up to their end, and
nothing but q, k, v, the result and the log-sum-exp is kept. Scores are float32 in both dtypes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinker_backend.runtime.autograd import apply

_BLOCK = 128


def causal_attention(q_nLHd: Tensor, k_nLKd: Tensor, v_nLKd: Tensor, scale: float) -> Tensor:
    """Attention of n sequences of L tokens, H query and K key heads; returns (n, L, H, d)."""
    if q_nLHd.device.type != "cpu":
        q, k, v = (x.transpose(1, 2) for x in (q_nLHd, k_nLKd, v_nLKd))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True).transpose(1, 2)
    if torch.is_grad_enabled():
        return apply(_CausalAttention, q_nLHd, k_nLKd, v_nLKd, scale)
    return _forward(q_nLHd, k_nLKd, v_nLKd, scale, keep=False)[0]


def _heads_first(x_nLKd: Tensor) -> Tensor:
    """(n, L, K, d) to (n K, L, d)."""
    n, length, heads, dim = x_nLKd.shape
    return x_nLKd.transpose(1, 2).reshape(n * heads, length, dim)


def _grouped(x_nLHd: Tensor, key_heads: int) -> Tensor:
    """View (n, K, g, L, d) of (n, L, K g, d)."""
    n, length, heads, dim = x_nLHd.shape
    return x_nLHd.view(n, length, key_heads, heads // key_heads, dim).permute(0, 2, 3, 1, 4)


def _future(width: int, device: torch.device) -> Tensor:
    return torch.ones(width, width, dtype=torch.bool, device=device).triu_(1)


def _forward(q: Tensor, k: Tensor, v: Tensor, scale: float, keep: bool) -> tuple[Tensor, Tensor | None]:
    n, length, heads, dim = q.shape
    key_heads = k.shape[2]
    group, batch = heads // key_heads, n * key_heads
    queries = _grouped(q.float() * scale, key_heads)
    keys, values = _heads_first(k.float()), _heads_first(v)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    out_view = _grouped(out, key_heads)
    normalizer = torch.empty(batch, group, length, 1, device=q.device) if keep else None
    for start in range(0, length, _BLOCK):
        stop = min(start + _BLOCK, length)
        width = stop - start
        rows = queries[:, :, :, start:stop].reshape(batch, group * width, dim)
        scores = torch.bmm(rows, keys[:, :stop].transpose(1, 2)).view(batch, group, width, stop)
        scores[..., start:].masked_fill_(_future(width, q.device), -float("inf"))
        peak = scores.amax(-1, keepdim=True)
        mass = scores.sub_(peak).exp_().sum(-1, keepdim=True)
        if normalizer is not None:
            normalizer[:, :, start:stop] = mass.log().add_(peak)
        weights = scores.div_(mass).view(batch, group * width, stop).to(v.dtype)
        part = torch.bmm(weights, values[:, :stop])
        out_view[:, :, :, start:stop] = part.view(n, key_heads, group, width, dim)
    return out, normalizer


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        out, normalizer = _forward(q, k, v, scale, keep=True)
        ctx.save_for_backward(q, k, v, out, normalizer)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, normalizer = ctx.saved_tensors
        scale: float = ctx.scale
        n, length, heads, dim = q.shape
        key_heads = k.shape[2]
        group, batch = heads // key_heads, n * key_heads
        # sum_j P_ij dP_ij = dO_i . O_i, so the softmax backward needs no second pass over the row.
        inner = (grad.float() * out).sum(-1).view(n, length, key_heads, group).permute(0, 2, 3, 1)
        inner = inner.reshape(batch, group, length, 1)
        queries, slopes = _grouped(q, key_heads), _grouped(grad, key_heads)
        keys, values = _heads_first(k), _heads_first(v)
        keys_wide, values_wide = keys.float(), values.float()
        grad_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        grad_q_view = _grouped(grad_q, key_heads)
        grad_k, grad_v = torch.zeros_like(keys_wide), torch.zeros_like(values_wide)
        for start in range(0, length, _BLOCK):
            stop = min(start + _BLOCK, length)
            width = stop - start
            rows = queries[:, :, :, start:stop].reshape(batch, group * width, dim)
            slope = slopes[:, :, :, start:stop].reshape(batch, group * width, dim)
            weights = torch.bmm(rows.float(), keys_wide[:, :stop].transpose(1, 2)).view(batch, group, width, stop)
            weights.mul_(scale).sub_(normalizer[:, :, start:stop]).exp_()
            weights[..., start:].masked_fill_(_future(width, q.device), 0.0)
            flat = weights.view(batch, group * width, stop)
            _add_product(grad_v[:, :stop], flat.to(v.dtype).transpose(1, 2), slope)
            scores = torch.bmm(slope.float(), values_wide[:, :stop].transpose(1, 2)).view(weights.shape)
            scores.sub_(inner[:, :, start:stop]).mul_(weights).mul_(scale)
            scores_flat = scores.view(batch, group * width, stop).to(q.dtype)
            part = torch.bmm(scores_flat, keys[:, :stop])
            grad_q_view[:, :, :, start:stop] = part.view(n, key_heads, group, width, dim)
            _add_product(grad_k[:, :stop], scores_flat.transpose(1, 2), rows)
        return grad_q, _heads_last(grad_k, k), _heads_last(grad_v, v), None


def _add_product(target: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == target.dtype:
        target.baddbmm_(left, right)
    else:
        target.add_(torch.bmm(left, right))


def _heads_last(x: Tensor, like_nLKd: Tensor) -> Tensor:
    n, length, heads, dim = like_nLKd.shape
    return x.view(n, heads, length, dim).transpose(1, 2).to(like_nLKd.dtype)
