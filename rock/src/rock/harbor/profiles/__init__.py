"""Profiles of the preinstalled agent: prompts, formats and default budgets, one YAML file each."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

PROFILES = ("text", "single", "tools")


def load_profile(name: str) -> dict[str, Any]:
    """The profile of this name."""
    return yaml.safe_load((files("rock.harbor.profiles") / f"{name}.yaml").read_text())
