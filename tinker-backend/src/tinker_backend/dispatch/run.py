"""One training run and the order of its operations.

Requests of a run carry seq_ids that rise by one. They may arrive in any order (clients post the later chunks of a
large batch first); they run in order. A request that was refused at the door has used its seq_id up.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..runtime.roles import RunSpec
from .promises import Promise

SEQ_LIMIT = 2**31
"""No seq_id that a request may carry is as high."""
MUTATING = frozenset({"create", "load_new", "forward_backward", "optim_step", "load_weights"})
"""Kinds that change a run's state, and are repeated when the state is rebuilt."""
REPLAYED = MUTATING | {"publish"}


@dataclass(eq=False)
class Operation:
    """One accepted request of a run."""

    seq_id: int
    kind: str
    params: dict[str, Any]
    promise: Promise
    tokens: int = 0
    size: int = 0
    """Bytes of the stored payload."""
    deaths: int = 0
    """How often the runtime died while it worked on this operation."""
    died_alone: int = 0
    """How often it died with nothing else under way."""


@dataclass(eq=False)
class Run:
    """A training run as the server knows it."""

    run_id: str
    session_id: str
    owner: str
    requested_model: str
    spec: RunSpec
    user_metadata: dict[str, Any] | None
    created_at: float
    last_request_at: float
    snapshot_seq: int = -1
    snapshot_folder: str | None = None
    failed: str | None = None
    """Why the run never came to life."""

    next_seq: int = 0
    """The seq_id that may run next."""
    held: dict[int, Operation] = field(default_factory=dict)
    ready: deque[Operation] = field(default_factory=deque)
    accepting: dict[int, asyncio.Future[Promise]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    worker: asyncio.Task[None] | None = None
    gap_timer: asyncio.TimerHandle | None = None
    idle_timer: asyncio.TimerHandle | None = None

    resident_in: int | None = None
    """Generation of the runtime that holds the run's present state."""
    applied_seq: int = -1
    """The last operation whose effect that state has."""
    log_bytes: int = 0
    log_seconds: float = 0.0
    log_operations: int = 0
    log_since: float = field(default_factory=time.monotonic)
    rebuild_failures: int = 0
    unsaved_versions: list[str] = field(default_factory=list)
    """Published sampler weights that are not on disk yet."""

    @property
    def missing(self) -> int | None:
        """The seq_id that held-back operations wait for."""
        return self.next_seq if self.held else None

    @property
    def highest_seen(self) -> int:
        """The highest seq_id that was accepted, refused or is being accepted."""
        return max((self.next_seq - 1, *self.held, *self.accepting, *self.refused), default=0)

    def is_used(self, seq_id: int) -> bool:
        """Whether the seq_id has an operation, or had one."""
        return seq_id < self.next_seq or seq_id in self.held or seq_id in self.refused

    def enqueue(self, operation: Operation) -> None:
        """Takes an accepted operation; those whose turn has come move to ``ready``."""
        self.held[operation.seq_id] = operation
        self._advance()

    def refuse(self, seq_id: int) -> None:
        """Uses a seq_id up without an operation."""
        if seq_id >= self.next_seq and seq_id not in self.held:
            self.refused.add(seq_id)
            self._advance()

    def skip_gap(self) -> list[Operation]:
        """Gives up waiting for missing seq_ids: returns the operations held back, which are no longer queued."""
        stranded = [self.held[seq] for seq in sorted(self.held)]
        self.held.clear()
        if stranded:
            self.next_seq = stranded[-1].seq_id + 1
            self.refused = {seq for seq in self.refused if seq >= self.next_seq}
            self._advance()
        return stranded

    def _advance(self) -> None:
        while True:
            if (operation := self.held.pop(self.next_seq, None)) is not None:
                self.ready.append(operation)
            elif self.next_seq in self.refused:
                self.refused.discard(self.next_seq)
            else:
                return
            self.next_seq += 1

    def note_applied(self, operation: Operation, seconds: float) -> None:
        """Counts an operation that a rebuild would have to repeat."""
        self.applied_seq = operation.seq_id
        if operation.kind in MUTATING:
            self.log_operations += 1
            self.log_bytes += operation.size
            self.log_seconds += seconds

    def note_snapshot(self, seq_id: int, folder: str) -> None:
        """The state after ``seq_id`` is on disk."""
        self.snapshot_seq, self.snapshot_folder = seq_id, folder
        self.log_bytes = self.log_operations = 0
        self.log_seconds = 0.0
        self.log_since = time.monotonic()
