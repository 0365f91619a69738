"""A self-hosted server of the Tinker API."""

__version__ = "0.1.0"
