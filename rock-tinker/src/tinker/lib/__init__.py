"""Modules that programs import by their long name."""
