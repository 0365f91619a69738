"""What the parts of the dispatcher share."""

from __future__ import annotations

from dataclasses import dataclass

from ..checkpoints.store import CheckpointStore
from ..config import RuntimeConfig
from ..ledger import Ledger
from ..supervisor import Supervisor
from .batcher import Batcher
from .gate import Gate
from .promises import PromiseBook
from .samplers import SamplerBook


@dataclass(frozen=True)
class Services:
    """Made once per server."""

    config: RuntimeConfig
    ledger: Ledger
    supervisor: Supervisor
    promises: PromiseBook
    store: CheckpointStore
    samplers: SamplerBook
    batcher: Batcher
    gate: Gate

    @property
    def call_timeout(self) -> float:
        """Seconds that one call to the runtime may take."""
        return self.config.runtime.operation_timeout_seconds
