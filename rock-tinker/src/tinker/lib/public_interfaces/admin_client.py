"""The client of administration."""

from ..._admin import AdminClient

__all__ = ["AdminClient"]
