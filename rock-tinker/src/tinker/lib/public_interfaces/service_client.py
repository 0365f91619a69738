"""The client that makes the others."""

from ..._service import ServiceClient

__all__ = ["ServiceClient"]
