"""Token logprobs and their gradient, chunk by chunk, without ever holding the logits of a whole batch.

A loss whose gradient with respect to a logprob depends on that position alone is differentiated inside the chunk that
made the logits; other losses need all logprobs first and recompute the logits in a second walk. Positions whose gradient
is zero (masked prompts) take no part in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tinker_backend.runtime.lora import AdapterSegment, Key, add_low_rank, low_rank_backward
from tinker_backend.runtime.packed_weights import sampling_linear

_CHUNK_BYTES = 24 * 1024 * 1024
"""Logits at once: what the caches of a processor hold, and below what is got from the kernel anew each time."""
_CHUNK_BYTES_CUDA = 256 * 1024 * 1024
_FEWEST_ROWS = 128
"""Products of fewer rows cost more a row."""
_SPARSE = 0.9
"""Above this share of positions with a gradient the whole chunk is differentiated without gathering rows."""


@dataclass(frozen=True)
class Head:
    """Output projection of one pack, and the adapters of its rows.

    ``weight`` (V, D) makes the logits, in its own dtype; ``narrow`` is the same in the dtype of the hidden states and
    carries gradients back, where rounding the (large) products is harmless.
    """

    weight: Tensor
    narrow: Tensor
    bias: Tensor | None
    segments: list[AdapterSegment]
    key: Key
    packed: Tensor | None = None
    """``weight`` in another order (see ``packed_weights``), for logits that are not differentiated."""

    @property
    def chunk_rows(self) -> int:
        """Rows whose float32 logits stay within the chunk budget."""
        size = _CHUNK_BYTES if self.weight.device.type == "cpu" else _CHUNK_BYTES_CUDA
        return max(_FEWEST_ROWS, size // (4 * self.weight.shape[0]))

    def sampling_logits(self, hidden: Tensor, segments: list[AdapterSegment]) -> Tensor:
        """float32 logits (n, V) and nothing that a backward needs."""
        hidden = hidden.to(self.weight.dtype)
        bias = None if self.bias is None else self.bias.to(self.weight.dtype)
        out = sampling_linear(hidden, self.weight, self.packed, bias)
        add_low_rank(hidden, out, segments, self.key)
        return out.float()

    def logits(self, hidden: Tensor, segments: list[AdapterSegment]) -> tuple[Tensor, list[Tensor | None]]:
        """float32 logits (n, V) and hidden A^T per segment."""
        hidden = hidden.to(self.weight.dtype)
        out = F.linear(hidden, self.weight, None if self.bias is None else self.bias.to(self.weight.dtype))
        kept: list[Tensor | None] = []
        for segment in segments:
            packed = segment.adapter.packed(self.key) if segment.adapter is not None else None
            if packed is None:
                kept.append(None)
                continue
            u = hidden[segment.start : segment.stop] @ packed.a_RI.t()
            out[segment.start : segment.stop].addmm_(u, packed.b_OR.t())
            kept.append(u)
        return out.float(), kept


def clip_segments(segments: list[AdapterSegment], start: int, stop: int) -> list[AdapterSegment]:
    """Segments of rows ``start:stop``, counted from ``start``."""
    clipped = []
    for s in segments:
        low, high = max(s.start, start), min(s.stop, stop)
        if low < high:
            clipped.append(AdapterSegment(low - start, high - start, s.adapter, s.sink))
    return clipped


LossGradient = Callable[[int, int, Tensor], Tensor]
"""(start, stop, logprobs (n, K)) -> d loss / d logprobs (n, K)"""


@torch.no_grad()
def score(head: Head, hidden_TD: Tensor, targets_TK: Tensor) -> Tensor:
    """float32 logprobs (T, K) of the targets."""
    parts = []
    for hidden, targets, segments in _chunks(head, hidden_TD, targets_TK):
        parts.append(_exponentiate(head.logits(hidden, segments)[0], targets)[0])
    return torch.cat(parts)


@torch.no_grad()
def score_and_differentiate(
    head: Head,
    hidden_TD: Tensor,
    targets_TK: Tensor,
    gradient: LossGradient,
    weight_grad: Tensor | None = None,
    bias_grad: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Logprobs (T, K) and d loss / d hidden (T, D); adapter sinks and ``weight_grad`` are added to."""
    logprobs, grad_hidden, at = [], torch.zeros_like(hidden_TD), 0
    for hidden, targets, segments in _chunks(head, hidden_TD, targets_TK):
        rows = hidden.shape[0]
        logits, kept = head.logits(hidden, segments)
        chosen, mass = _exponentiate(logits, targets)
        logprobs.append(chosen)
        grad = gradient(at, at + rows, chosen)
        _backward(
            head,
            grad_hidden[at : at + rows],
            hidden,
            targets,
            segments,
            logits,
            kept,
            mass,
            grad,
            weight_grad,
            bias_grad,
        )
        at += rows
    return torch.cat(logprobs), grad_hidden


@torch.no_grad()
def differentiate(
    head: Head,
    hidden_TD: Tensor,
    targets_TK: Tensor,
    gradient_TK: Tensor,
    weight_grad: Tensor | None = None,
    bias_grad: Tensor | None = None,
) -> Tensor:
    """d loss / d hidden (T, D) for a known d loss / d logprobs; the second walk of losses over whole sequences."""
    return score_and_differentiate(
        head, hidden_TD, targets_TK, lambda start, stop, _: gradient_TK[start:stop], weight_grad, bias_grad
    )[1]


def _chunks(head: Head, hidden: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor, list[AdapterSegment]]]:
    total = hidden.shape[0]
    for start in range(0, total, head.chunk_rows):
        stop = min(start + head.chunk_rows, total)
        yield hidden[start:stop], targets[start:stop], clip_segments(head.segments, start, stop)


def _exponentiate(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Turns logits into exp(logits - max) in place; returns logprobs of the targets and the row sums (n, 1)."""
    chosen = logits.gather(1, targets)
    peak = logits.amax(-1, keepdim=True)
    mass = logits.sub_(peak).exp_().sum(-1, keepdim=True)
    return chosen - (mass.log() + peak), mass


def _backward(
    head: Head,
    grad_hidden: Tensor,
    hidden: Tensor,
    targets: Tensor,
    segments: list[AdapterSegment],
    exponentials: Tensor,
    kept: list[Tensor | None],
    mass: Tensor,
    grad: Tensor,
    weight_grad: Tensor | None,
    bias_grad: Tensor | None,
) -> None:
    touched = (grad != 0).any(-1)
    count = int(touched.sum())
    if count == 0:
        return
    rows = None
    if count < _SPARSE * touched.shape[0]:
        rows = touched.nonzero().squeeze(1)
        hidden, targets, exponentials = hidden[rows], targets[rows], exponentials[rows]
        mass, grad = mass[rows], grad[rows]
        segments, kept = _select(segments, kept, rows)
    # d/d logits of sum_k g_k logprob_k = onehot(g) - softmax * sum_k g_k
    slope_wide = exponentials.mul_(grad.sum(-1, keepdim=True).neg_().div_(mass))
    slope_wide.scatter_add_(1, targets, grad)
    slope = slope_wide.to(head.narrow.dtype)
    grad_rows = (slope @ head.narrow).to(hidden.dtype)
    if any(u is not None for u in kept):
        wide = grad_rows.to(head.weight.dtype)
        low_rank_backward(hidden.to(head.weight.dtype), slope_wide, wide, kept, segments, head.key)
        grad_rows = wide.to(hidden.dtype)
    if weight_grad is not None:
        weight_grad.add_(slope.t() @ hidden.to(slope.dtype))
    if bias_grad is not None:
        bias_grad.add_(slope_wide.sum(0))
    if rows is None:
        grad_hidden.copy_(grad_rows)
    else:
        grad_hidden.index_copy_(0, rows, grad_rows)


def _select(
    segments: list[AdapterSegment], kept: list[Tensor | None], rows: Tensor
) -> tuple[list[AdapterSegment], list[Tensor | None]]:
    """Segments and their x A^T for the sorted selection ``rows``; segments without a selected row fall away."""
    chosen_segments: list[AdapterSegment] = []
    chosen_kept: list[Tensor | None] = []
    at = 0
    for segment, u in zip(segments, kept, strict=True):
        inside = rows[(rows >= segment.start) & (rows < segment.stop)]
        if inside.shape[0]:
            chosen_segments.append(AdapterSegment(at, at + inside.shape[0], segment.adapter, segment.sink))
            chosen_kept.append(None if u is None else u[inside - segment.start])
        at += inside.shape[0]
    return chosen_segments, chosen_kept
