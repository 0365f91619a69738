"""The Tinker SDK."""
