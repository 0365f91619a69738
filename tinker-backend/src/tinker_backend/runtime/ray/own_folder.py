"""A temporary folder of this process. What a killed process left behind, the next one removes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_LOCK = ".lock"
_YOUNG_SECONDS = 60.0
"""A folder without a lock may be about to get one."""


class OwnFolder:
    """``path`` is a new folder ``STEM-…`` in ``parent``; it is locked as long as this process lives."""

    def __init__(self, parent: Path, stem: str) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent, stem)
        self.path = Path(tempfile.mkdtemp(prefix=f"{stem}-", dir=parent))
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Removes the folder. Does nothing the second time."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_abandoned(parent: Path, stem: str) -> None:
    for lock in parent.glob(f"{stem}-*/{_LOCK}"):
        try:
            if time.time() - lock.stat().st_mtime < _YOUNG_SECONDS:
                continue
            handle = os.open(lock, os.O_RDWR)
        except OSError:  # another user's, or gone meanwhile
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)
