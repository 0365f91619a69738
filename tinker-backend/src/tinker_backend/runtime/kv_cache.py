"""Memory of attention: rows of running sequences, segments of finished prefixes, and one budget over both.

Rows of like capacity share one tensor, filled without holes, so that a decode step reads them in place. A segment keeps
the keys and values of a token prefix of one weights version; prompts that begin with it copy instead of computing.
"""

from __future__ import annotations

import math
import mmap
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tinker_backend.runtime.architecture import Architecture

_BLOCK = 16
_SMALLEST_ROW = 64
_OWN_MAPPING_BYTES = 1 << 20
Tokens = npt.NDArray[np.int64]
Owner = TypeVar("Owner")


class KvBudget:
    """Tokens of keys and values that may exist at once, over all models and versions."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def fits(self, tokens: int) -> bool:
        """Whether so many more tokens fit now."""
        return self.used + tokens <= self.limit


def new_kv(
    architecture: Architecture, rows: int | None, length: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """(2 layers, [rows,] kv_heads, length, head_dim); index 2 i holds the keys of layer i, 2 i + 1 its values.

    Zeroed: attention multiplies what is masked with 0, which only finite numbers survive. On a processor what is large is
    a mapping of its own, which goes back to the system as a whole: among the activations of training passes, segments that
    come and go would leave holes that fit nothing.
    """
    shape = (
        2 * architecture.layers,
        *(() if rows is None else (rows,)),
        architecture.kv_heads,
        length,
        architecture.head_dim,
    )
    count = math.prod(shape)
    if device.type != "cpu" or count * dtype.itemsize < _OWN_MAPPING_BYTES:
        return torch.zeros(shape, dtype=dtype, device=device)
    mapping = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(mapping, dtype=dtype, count=count).view(shape)


def bytes_per_token(architecture: Architecture, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one token."""
    return 2 * architecture.layers * architecture.kv_heads * architecture.head_dim * dtype.itemsize


class RowPool(Generic[Owner]):
    """Rows of one capacity. Row numbers of owners change when others leave; ``owners[i]`` has row i."""

    def __init__(self, architecture: Architecture, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = capacity
        self.owners: list[Owner] = []
        self._architecture, self._dtype, self._device = architecture, dtype, device
        self.kv = new_kv(architecture, 0, capacity, dtype, device)

    def add(self, owners: list[Owner], prefix: Tensor, length: int) -> None:
        """Appends rows that begin with the same ``length`` tokens of ``prefix`` (2 layers, kv_heads, >= length, d)."""
        first = len(self.owners)
        self._reserve(first + len(owners))
        self.owners.extend(owners)
        self.kv[:, first : len(self.owners), :, :length] = prefix[:, None, :, :length]

    def row(self, index: int) -> Tensor:
        """Keys and values of one row."""
        return self.kv[:, index]

    def remove(self, index: int, length_of_last: int) -> None:
        """Gives up row ``index``; the last row moves into its place. ``length_of_last``: valid tokens of the last row."""
        last = len(self.owners) - 1
        if index != last:
            self.kv[:, index, :, :length_of_last] = self.kv[:, last, :, :length_of_last]
            self.owners[index] = self.owners[last]
        self.owners.pop()
        if not self.owners:
            self.kv = new_kv(self._architecture, 0, self.capacity, self._dtype, self._device)

    def _reserve(self, rows: int) -> None:
        present = self.kv.shape[1]
        if rows <= present:
            return
        grown = new_kv(self._architecture, max(rows, 2 * present), self.capacity, self._dtype, self._device)
        used = len(self.owners)
        grown[:, :used] = self.kv[:, :used]
        self.kv = grown


def capacity_for(length: int, context: int) -> int:
    """The smallest row capacity that holds ``length`` tokens."""
    capacity = _SMALLEST_ROW
    while capacity < length:
        capacity *= 2
    return min(capacity, max(context, length))


@dataclass(eq=False)
class Segment:
    """Keys and values (2 layers, kv_heads, n, d) of ``tokens`` (n,) under one weights version."""

    version: str
    tokens: Tokens
    kv: Tensor
    users: int = 0
    """Prompts in progress that read it; while there are any it is not evicted."""
    last_hidden: Tensor | None = None
    """(1, hidden) final hidden state of the last token: what chooses the token after it."""
    keys: list[tuple[str, int]] = field(default_factory=list)


class PrefixCache:
    """Finds the longest known prefix of a prompt; forgets the least recently used first."""

    def __init__(self, budget: KvBudget) -> None:
        self._budget = budget
        self._segments: OrderedDict[int, Segment] = OrderedDict()
        self._index: dict[tuple[str, int], Segment] = {}
        self._by_last_key: defaultdict[tuple[str, int], list[Segment]] = defaultdict(list)

    def find(self, version: str, tokens: Tokens) -> tuple[Segment, int] | None:
        """The segment that shares most of its beginning with ``tokens``, and how many tokens that is."""
        found: Segment | None = None
        for key in _keys(version, tokens):
            segment = self._index.get(key)
            if segment is None:
                break
            found = segment
        if found is None:
            return None
        shared = min(len(found.tokens), len(tokens))
        differing = np.flatnonzero(found.tokens[:shared] != tokens[:shared])
        length = int(differing[0]) if len(differing) else shared
        self._segments.move_to_end(id(found))
        return (found, length) if length >= _BLOCK else None

    def keep(self, segment: Segment) -> None:
        """Takes over a segment whose tokens are already counted in the budget. Those that it contains may go."""
        if len(segment.tokens) < _BLOCK:
            self._budget.used -= len(segment.tokens)
            return
        segment.keys.extend(_keys(segment.version, segment.tokens))
        for key in segment.keys:
            for other in list(self._by_last_key.get(key, ())):
                if not other.users and _supersedes(segment, other):
                    self._evict(other)
        self._segments[id(segment)] = segment
        self._by_last_key[segment.keys[-1]].append(segment)
        for key in segment.keys:
            self._index[key] = segment

    def make_room(self, tokens: int) -> bool:
        """Evicts unused segments, oldest first, until ``tokens`` fit; False when they never will now."""
        if self._budget.fits(tokens):
            return True
        for segment in [s for s in self._segments.values() if not s.users]:
            self._evict(segment)
            if self._budget.fits(tokens):
                return True
        return False

    def forget(self, version: str) -> None:
        """Drops what belongs to a weights version."""
        for segment in [s for s in self._segments.values() if s.version == version and not s.users]:
            self._evict(segment)

    @property
    def tokens(self) -> int:
        """Tokens held by the cache."""
        return sum(len(s.tokens) for s in self._segments.values())

    def _evict(self, segment: Segment) -> None:
        del self._segments[id(segment)]
        for key in segment.keys:
            if self._index.get(key) is segment:
                del self._index[key]
        alike = self._by_last_key[segment.keys[-1]]
        alike.remove(segment)
        if not alike:
            del self._by_last_key[segment.keys[-1]]
        self._budget.used -= len(segment.tokens)


def _supersedes(segment: Segment, other: Segment) -> bool:
    """Whether ``segment`` is good for all that ``other`` is good for, as with the turns of one conversation.

    A prompt is worth keeping beside its answers, since it can be asked again without computing anything; not beside a
    longer prompt that goes on from it.
    """
    size = len(other.tokens)
    if size > len(segment.tokens) or (other.last_hidden is not None and segment.last_hidden is None):
        return False
    return np.array_equal(segment.tokens[:size], other.tokens)


def _keys(version: str, tokens: Tokens) -> Iterator[tuple[str, int]]:
    """One key for each whole block, which stands for all tokens up to its end."""
    chain = 0
    for start in range(0, len(tokens) - _BLOCK + 1, _BLOCK):
        chain = hash((chain, tokens[start : start + _BLOCK].tobytes()))
        yield version, chain
