"""Which rank computes which datum. Every rank comes to the same answer from the same requests, without talking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tinker_backend.runtime.datum_pack import PreparedRequest
from tinker_backend.runtime.micro_batch_pass import Tally
from tinker_backend.runtime.roles import Array, LossResult, RuntimeFault


def balanced_shares(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Indices of each rank: longest first, always to the rank with the fewest tokens; within a rank in order."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rank = min(range(ranks), key=lambda r: (loads[r], r))
        shares[rank].append(index)
        loads[rank] += lengths[index]
    return [sorted(share) for share in shares]


@dataclass(frozen=True)
class Share:
    """What one rank computes of one request: the request with fewer datums, and their places in the whole one."""

    prepared: PreparedRequest
    places: list[int]


def share_of(group: Sequence[PreparedRequest], ranks: int, rank: int) -> list[Share]:
    """The shares of one rank of all requests of a pass; requests of which it computes nothing are left out."""
    items = [(prepared, place) for prepared in group for place in range(len(prepared.data))]
    mine = balanced_shares([len(p.data[place].tokens) for p, place in items], ranks)[rank]
    places: dict[int, list[int]] = {}
    for index in mine:
        prepared, place = items[index]
        places.setdefault(prepared.index, []).append(place)
    return [
        Share(
            replace(prepared, data=[prepared.data[place] for place in places[prepared.index]]), places[prepared.index]
        )
        for prepared in group
        if prepared.index in places
    ]


@dataclass(frozen=True)
class Partial:
    """What one rank found out about one request."""

    places: list[int]
    tally: Tally


def merge(parts: Sequence[Partial | RuntimeFault]) -> LossResult | RuntimeFault:
    """One result out of those of all ranks; a fault on any rank is the request's."""
    whole = Tally()
    outputs: dict[int, dict[str, Array]] = {}
    for part in parts:
        if isinstance(part, RuntimeFault):
            return part
        outputs.update(zip(part.places, part.tally.outputs, strict=True))
        for name in ("loss", "tokens", "loss_tokens", "gap", "gap_squared", "gap_tokens"):
            setattr(whole, name, getattr(whole, name) + getattr(part.tally, name))
        for name, value in part.tally.custom.items():
            whole.custom[name] = whole.custom.get(name, 0.0) + value
    whole.outputs = [outputs[place] for place in sorted(outputs)]
    return whole.result()
