"""Combinations of settings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from tinker_cookbook.utils.session_naming import slugify


def grid(axes: Mapping[str, Sequence[Any]] | None = None, **kwargs: Sequence[Any]) -> list[dict[str, Any]]:
    """All combinations of the values of each axis; the last axis changes fastest."""
    merged = {**(axes or {}), **kwargs}
    return [dict(zip(merged, values, strict=True)) for values in itertools.product(*merged.values())]


def default_run_name(overrides: Mapping[str, Any]) -> str:
    """Name of a combination, which also works as a folder's: ``learning_rate-0.0001_lora_rank-32``."""
    return "_".join(f"{name}-{slugify(str(value))}" for name, value in overrides.items()) or "run"
