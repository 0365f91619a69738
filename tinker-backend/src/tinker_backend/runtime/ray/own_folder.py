"""A temporary folder of this process. What a killed process left behind, the next one removes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from tinker_backend.runtime.ray.leftovers import end_writers, remove_noted_memory

_LOCK = ".lock"


class OwnFolder:
    """``path`` is a new folder ``STEM-…`` in ``parent``; it is locked as long as this process lives."""

    def __init__(self, parent: Path, stem: str) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(parent, stem)
        self.path = Path(tempfile.mkdtemp(prefix=f"{stem}-", dir=parent))
        # Under its final name the lock is never seen unlocked while this process lives.
        self._lock = os.open(self.path / "new", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / "new").rename(self.path / _LOCK)

    def remove(self) -> None:
        """Removes the folder and what was noted in it. Does nothing the second time."""
        _remove(self.path)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_abandoned(parent: Path, stem: str) -> None:
    """Removes the folders of this user's dead processes, with the processes and the memory that these left behind."""
    for folder in parent.glob(f"{stem}-*"):
        with contextlib.suppress(OSError):  # it is in use, or another process was faster
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end_writers(folder)
                _remove(folder)
            finally:
                os.close(lock)


def _remove(folder: Path) -> None:
    remove_noted_memory(folder)
    shutil.rmtree(folder, ignore_errors=True)
