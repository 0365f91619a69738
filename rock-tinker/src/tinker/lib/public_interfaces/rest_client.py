"""The client of runs and checkpoints."""

from ..._rest import RestClient

__all__ = ["RestClient"]
