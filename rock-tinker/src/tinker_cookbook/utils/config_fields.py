"""Configurations that share fields."""

from __future__ import annotations

from typing import Any


def field_names(config_class: type) -> set[str]:
    """Names of the fields of a chz class."""
    return set(getattr(config_class, "__chz_fields__", ()))


def shared_values(config: Any, target: type) -> dict[str, Any]:
    """Values of the fields that a configuration has in common with a chz class."""
    return {name: getattr(config, name) for name in field_names(type(config)) & field_names(target)}
