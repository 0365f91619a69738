"""Where weights lie on disk, and the file operations on them: hard-linked copies, removal, sizes.

Saved folders are immutable, so a copy is a set of hard links where the file system has them.

    <checkpoints>/<run>/<segment>/<name>     what clients named
    <checkpoints>/.runs/<run>/...            snapshots from which runs are rebuilt
    <checkpoints>/.samplers/<sampler>        unnamed sampler weights
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from pathlib import Path

from .paths import SEGMENTS, TinkerPath


def _plain(name: str) -> str:
    """A run or sampler id as a folder name."""
    return re.sub(r"[^A-Za-z0-9_.=@+-]", "-", name)


class WeightFolders:
    """The folder layout under the checkpoint folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self) -> None:
        """Makes the root. Raises OSError."""
        for folder in (self.root, self.root / ".runs", self.root / ".samplers"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def checkpoint(self, path: TinkerPath) -> Path:
        """Where a named checkpoint goes, when nothing lies there yet."""
        return self.root / _plain(path.run_id) / SEGMENTS[path.kind] / path.name

    def snapshot(self, run_id: str, label: str) -> Path:
        """A snapshot of a run's whole state."""
        return self.root / ".runs" / _plain(run_id) / label

    def snapshots(self, run_id: str) -> Path:
        """The parent of all snapshots of a run."""
        return self.root / ".runs" / _plain(run_id)

    def sampler(self, sampler_id: str) -> Path:
        """Unnamed sampler weights."""
        return self.root / ".samplers" / _plain(sampler_id)


def link_tree(source: Path, target: Path) -> None:
    """Makes ``target`` a copy of ``source`` by hard links, atomically; what lay there before is replaced."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    temporary.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(source, temporary, copy_function=_link_or_copy)
        remove_tree(target)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def remove_tree(folder: Path) -> None:
    """Removes a folder, first out of sight, so that a half-removed one is never seen."""
    if not folder.exists():
        return
    doomed = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.removed")
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def file_sizes(folder: Path) -> dict[str, int]:
    """Relative names and sizes in bytes of all files below ``folder``."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
