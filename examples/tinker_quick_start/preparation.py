"""What the parts of prepare_sandbox.py share: their error, commands, checksums."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path


class PreparationError(Exception):
    """Something is missing or wrong; the message names it and the fix."""


def run(command: list[str], timeout: float = 300, environment: dict[str, str] | None = None) -> str:
    """Runs a command without a terminal. Raises PreparationError with the last line that it said."""
    variables = os.environ | {"GIT_TERMINAL_PROMPT": "0"} | (environment or {})
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=variables)
    except subprocess.TimeoutExpired as error:
        raise PreparationError(
            f"{command[0]} did not end within {timeout:g} s; check the network and run this again"
        ) from error
    except OSError as error:
        raise PreparationError(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise PreparationError(f"{' '.join(command[:1])} failed: {said[-1] if said else done.returncode}")
    return done.stdout


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file, by relative path."""
    return {
        str(path.relative_to(folder)): digest(path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()
    }


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
