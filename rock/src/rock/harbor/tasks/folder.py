"""Task folders: written whole, with a manifest of their files, and never overwritten."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rock.harbor.tasks.sources import file_digest

MANIFEST = "task-source.json"


class TaskFolderError(RuntimeError):
    """A task folder is in the way or is not what its manifest says."""


def write_task(target: Path, origin: dict[str, Any], fill: Callable[[Path], None]) -> bool:
    """Makes the folder ``target`` with what ``fill`` writes and a manifest (``origin`` plus the checksum of each file).

    Returns False when ``target`` holds exactly that already.

    Raises:
        TaskFolderError: ``target`` exists with other content.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        scratch.chmod(0o755)
        fill(scratch)
        for script in (*scratch.glob("tests/*.sh"), *scratch.glob("solution/*.sh")):
            script.chmod(0o755)
        manifest = {**origin, "files": checksums(scratch)}
        (scratch / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
        if target.exists():
            if checksums(target) == manifest["files"]:
                return False
            raise TaskFolderError(
                f"{target} exists and differs from what would be written; move it away or choose another folder"
            )
        os.rename(scratch, target)
        return True
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a task folder but its manifest, by relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in paths}
