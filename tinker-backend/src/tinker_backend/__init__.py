"""A self-hosted server of the Tinker API."""
