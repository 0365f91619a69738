"""Which code a run was made with."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git_revision() -> str | None:
    """Commit of the checkout that holds this file; None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def recipe_user_metadata(recipe_name: str | None) -> dict[str, str]:
    """Metadata of a training run on the server."""
    rows = {"recipe_name": recipe_name, "git_rev": git_revision()}
    return {key: value for key, value in rows.items() if value}
