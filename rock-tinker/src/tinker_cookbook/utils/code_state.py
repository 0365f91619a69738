"""Uncommitted changes of the code in use, to store beside a run."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path


def code_state(modules: Sequence[str] = ("tinker_cookbook",)) -> str:
    """``git diff HEAD`` of the repositories that hold these modules; empty where there is no repository."""
    parts = []
    for module in modules:
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.origin:
            continue
        folder = Path(spec.origin).parent
        try:
            done = subprocess.run(
                ["git", "diff", "HEAD", "--", "."], cwd=folder, capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout:
            parts.append(f"### {module}\n{done.stdout}")
    return "\n".join(parts)
