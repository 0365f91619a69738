"""What attention reads while sampling: segments while a prompt is read, rows while samples run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tinker_backend.runtime.attention import PackLayout, packed_attention
from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.batcher import ReadChunk, Sample
from tinker_backend.runtime.hardware import small_products
from tinker_backend.runtime.sampler_version import WeightSet


class ReadAttention:
    """Attention of prompt chunks; keys and values go to the segments. Chunks that start at 0 come first."""

    def __init__(self, chunks: Sequence[ReadChunk], base: BaseModel) -> None:
        self._scale = base.decoder.scale
        self._fresh = [c for c in chunks if c.start == 0]
        self._continued = [c for c in chunks if c.start > 0]
        self._layout = PackLayout([c.stop for c in self._fresh], base.device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = 0
        for chunk in (*self._fresh, *self._continued):
            size, segment = chunk.stop - chunk.start, chunk.prompt.segment
            assert segment is not None
            segment.kv[2 * layer, :, chunk.start : chunk.stop] = k[at : at + size].transpose(0, 1)
            segment.kv[2 * layer + 1, :, chunk.start : chunk.stop] = v[at : at + size].transpose(0, 1)
            at += size
        fresh = self._layout.tokens
        parts = [packed_attention(q[:fresh], k[:fresh], v[:fresh], self._layout, self._scale)] if fresh else []
        at = fresh
        for chunk in self._continued:
            size = chunk.stop - chunk.start
            parts.append(self._continue(layer, q[at : at + size], chunk))
            at += size
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _continue(self, layer: int, q_nHd: Tensor, chunk: ReadChunk) -> Tensor:
        """Later tokens of a prompt see everything before them and one another causally."""
        count, heads, dim = q_nHd.shape
        assert chunk.prompt.segment is not None
        kv = chunk.prompt.segment.kv
        keys, values = kv[2 * layer, :, : chunk.stop], kv[2 * layer + 1, :, : chunk.stop]
        repeat = heads // keys.shape[0]
        if repeat > 1:
            keys, values = keys.repeat_interleave(repeat, 0), values.repeat_interleave(repeat, 0)
        mask = None
        if count > 1:
            places = torch.arange(chunk.stop, device=q_nHd.device)
            mask = places[None, :] <= places[chunk.start :, None]
        out = F.scaled_dot_product_attention(
            q_nHd.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, scale=self._scale
        )
        return out[0].transpose(0, 1).reshape(count, heads * dim)


class DecodeAttention:
    """Attention of one new token per sample over its row. Samples may stand in any order; rows are read in place."""

    def __init__(self, weight_set: WeightSet, samples: Sequence[Sample]) -> None:
        base = weight_set.base
        self._scale = base.decoder.scale
        place = {id(sample): row for row, sample in enumerate(samples)}
        self._pools = []
        for pool in weight_set.pools.values():
            if not pool.owners:
                continue
            lengths = [owner.cached for owner in pool.owners]
            longest = max(lengths) + 1
            even = min(lengths) + 1 == longest
            order = [place[id(owner)] for owner in pool.owners]
            positions = torch.tensor(lengths, device=base.device)
            mask = None
            if not even:
                mask = (torch.arange(longest, device=base.device)[None, :] <= positions[:, None])[:, None, None, :]
            self._pools.append(
                (
                    pool,
                    None if order == list(range(len(samples))) else torch.tensor(order, device=base.device),
                    torch.arange(len(order), device=base.device),
                    positions,
                    longest,
                    mask,
                    even,
                )
            )

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads, dim = q.shape[1:]
        kv_heads = k.shape[1]
        out: Tensor | None = None
        for pool, order, rows, positions, longest, mask, even in self._pools:
            q_p, k_p, v_p = (q, k, v) if order is None else (q[order], k[order], v[order])
            keys, values = pool.kv[2 * layer], pool.kv[2 * layer + 1]
            count = rows.shape[0]
            if even:
                keys[:count, :, longest - 1] = k_p
                values[:count, :, longest - 1] = v_p
            else:
                keys[rows, :, positions] = k_p
                values[rows, :, positions] = v_p
            # The query heads of one key head stand in the place of query positions.
            grouped = q_p.reshape(count, kv_heads, heads // kv_heads, dim)
            with small_products():
                part = F.scaled_dot_product_attention(
                    grouped, keys[:count, :, :longest], values[:count, :, :longest], attn_mask=mask, scale=self._scale
                ).reshape(count, heads * dim)
            if order is None:
                return part
            if out is None:
                out = torch.empty(q.shape[0], heads * dim, dtype=q.dtype, device=q.device)
            out[order] = part
        assert out is not None
        return out
