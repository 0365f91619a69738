"""Causal attention over packed sequences: no sequence sees another, and no mask is materialised.

Sequences of similar length are padded to the right and share one kernel call; with a causal kernel the padding is never
seen by a real token. Long or lonely sequences are sliced out of the pack and need no copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinker_backend.runtime.causal_attention import causal_attention

_WASTE = 1.25
"""A group of sequences may be padded to at most this multiple of its tokens."""


@dataclass(frozen=True)
class _Group:
    start: int
    count: int
    length: int
    gather: Tensor | None
    """(count * length,) rows of the pack, None when the group is a plain slice of it."""
    scatter: Tensor | None
    """rows of the padded group that are real, in pack order ``targets``."""
    targets: Tensor | None


class PackLayout:
    """Where the sequences of a pack are. ``lengths`` in pack order; tokens of a sequence are contiguous."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.lengths = list(lengths)
        self.tokens = sum(self.lengths)
        self.positions = (
            torch.cat([torch.arange(n) for n in self.lengths]).to(device) if self.lengths else torch.empty(0)
        )
        self.groups = _groups(self.lengths, device)

    @property
    def last_rows(self) -> list[int]:
        """Row of the last token of each sequence."""
        rows, at = [], 0
        for n in self.lengths:
            at += n
            rows.append(at - 1)
        return rows


def _groups(lengths: list[int], device: torch.device) -> list[_Group]:
    starts, at = [], 0
    for n in lengths:
        starts.append(at)
        at += n
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    groups: list[_Group] = []
    while order:
        longest = lengths[order[0]]
        members: list[int] = []
        tokens = 0
        for i in order:
            if longest * (len(members) + 1) > _WASTE * (tokens + lengths[i]):
                break
            members.append(i)
            tokens += lengths[i]
        order = order[len(members) :]
        members.sort()
        contiguous = members == list(range(members[0], members[0] + len(members)))
        if contiguous and tokens == longest * len(members):
            groups.append(_Group(starts[members[0]], len(members), longest, None, None, None))
            continue
        column = torch.arange(longest)
        sizes = torch.tensor([lengths[i] for i in members])
        begin = torch.tensor([starts[i] for i in members])
        real = column[None, :] < sizes[:, None]
        rows = begin[:, None] + torch.minimum(column[None, :], sizes[:, None] - 1)
        groups.append(
            _Group(
                starts[members[0]],
                len(members),
                longest,
                rows.reshape(-1).to(device),
                real.reshape(-1).nonzero().squeeze(1).to(device),
                rows[real].to(device),
            )
        )
    return groups


def packed_attention(q_THd: Tensor, k_TKd: Tensor, v_TKd: Tensor, layout: PackLayout, scale: float) -> Tensor:
    """Causal attention within each sequence; returns (T, H * d)."""
    tokens, heads, dim = q_THd.shape
    parts: list[Tensor] = []
    for group in layout.groups:
        q, k, v = (_take(x, group) for x in (q_THd, k_TKd, v_TKd))
        out_nLHd = causal_attention(q, k, v, scale)
        if group.gather is None and len(layout.groups) == 1:
            return out_nLHd.reshape(tokens, heads * dim)
        flat = out_nLHd.reshape(group.count * group.length, heads * dim)
        parts.append(flat if group.scatter is None else flat.index_select(0, group.scatter))
    places = [
        torch.arange(g.start, g.start + g.count * g.length, device=q_THd.device) if g.targets is None else g.targets
        for g in layout.groups
    ]
    inverse = torch.empty(tokens, dtype=torch.long, device=q_THd.device)
    inverse[torch.cat(places)] = torch.arange(tokens, device=q_THd.device)
    return torch.cat(parts).index_select(0, inverse)


def _take(x_THd: Tensor, group: _Group) -> Tensor:
    rows = group.count * group.length
    taken = x_THd[group.start : group.start + rows] if group.gather is None else x_THd.index_select(0, group.gather)
    return taken.view(group.count, group.length, *x_THd.shape[1:])
