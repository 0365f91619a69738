"""All weights straight from the trainer's first rank to every sampling worker: NCCL between GPUs, gloo between CPUs.

The group lives for one publication, so a sampler that dies leaves nothing behind. The versioned folder is written all the same
(``weight_sync``): it is what a replaced replica reads, and what brings the version back after others have had their turn.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tinker_backend.runtime.architecture import Architecture


@dataclass(frozen=True)
class Channel:
    """Where the participants of one publication meet. The sender is number 0 of ``world`` and listens on ``host:port``."""

    host: str
    port: int
    world: int
    device: str
    """``cuda`` or ``cpu``."""
    seconds: float = 300

    def join(self, number: int) -> Any:
        """A process group of its own, beside whatever groups the process has. Blocks until all are there."""
        timeout = datetime.timedelta(seconds=self.seconds)
        store = dist.TCPStore(self.host, self.port, self.world, is_master=number == 0, timeout=timeout)
        if self.device == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            return dist.ProcessGroupNCCL(store, number, self.world, options)
        return dist.ProcessGroupGloo(store, number, self.world, timeout)


@dataclass(frozen=True)
class Item:
    """One checkpoint tensor: its name and shape in a Hugging Face folder."""

    name: str
    shape: tuple[int, ...]


def manifest(architecture: Architecture) -> list[Item]:
    """All checkpoint tensors in the order in which they are sent."""
    items: list[Item] = []
    for shape, pieces in architecture.plan().values():
        for piece in pieces:
            part = (piece.stop - piece.start, *shape[1:])
            items.append(Item(piece.name, part[::-1] if piece.transposed else part))
    return items


def pieces_of(architecture: Architecture, name: str, fused: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Checkpoint tensors of one fused weight, in the order of the manifest."""
    for piece in architecture.plan()[name][1]:
        part = fused[piece.start : piece.stop]
        yield (part.t() if piece.transposed else part).to(dtype).contiguous()


def send(tensors: Iterable[Tensor], channel: Channel) -> None:
    """Sends tensors in order to everybody else."""
    group = channel.join(0)
    for tensor in tensors:
        group.broadcast(tensor, 0).wait()
    _finish(group)


def receive(items: Iterable[Item], dtype: torch.dtype, channel: Channel, number: int) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors as they come; each must be used before the next is asked for."""
    group = channel.join(number)
    for item in items:
        tensor = torch.empty(item.shape, dtype=dtype, device=channel.device)
        group.broadcast(tensor, 0).wait()
        yield item.name, tensor
    _finish(group)


def _finish(group: Any) -> None:
    """Nobody leaves before all have everything: the sender holds the store."""
    group.barrier().wait()


def plain(items: list[Item], dtype: str, channel: Channel, first: int) -> tuple[Any, ...]:
    """Arguments of ``receive_weights`` as vLLM carries them to its workers: numbers, strings, lists and dicts."""
    return [[item.name, list(item.shape)] for item in items], dtype, asdict(channel), first
