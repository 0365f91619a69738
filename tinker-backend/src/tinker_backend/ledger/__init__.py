"""The durable record: sessions, runs, operations with payloads and results, samplers, checkpoints."""

from .ledger import Ledger

__all__ = ["Ledger"]
