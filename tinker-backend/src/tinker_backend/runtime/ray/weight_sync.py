"""How weights pass from trainer to sampler: a folder a version, complete when its marker is there, never changed after.

The folder lies in memory (``/dev/shm``) on one machine and on a shared file system between nodes. A sampler that sees a
version's name before its files waits for the marker, so it never reads half a version.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tinker_backend.runtime.ray.own_folder import OwnFolder
from tinker_backend.runtime.roles import RuntimeFault, SavedWeights, SaveKind

log = logging.getLogger(__name__)

MARKER = "STABLE"
_POLL_SECONDS = 0.02


class ExchangeFolder:
    """Versions that were published and not yet dropped."""

    def __init__(self, root: Path | None) -> None:
        memory = Path("/dev/shm")
        parent = root or (memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir()))
        self._own = OwnFolder(parent, "tinker-weights")
        self.folder = self._own.path
        self._count = 0
        self._held: dict[str, Path] = {}

    def publish(self, version: str, save: Callable[[str, SaveKind], SavedWeights], kind: SaveKind) -> Path:
        """Lets ``save`` write a new folder and marks it complete. A name that comes again gets another path."""
        path = self.reserve(version)
        try:
            self.fill(path, save, kind)
        except BaseException:
            self.drop(version)
            raise
        return path

    def reserve(self, version: str) -> Path:
        """The folder that a version will have."""
        self._count += 1
        self._held[version] = self.folder / f"{self._count:06d}"
        return self._held[version]

    def fill(self, path: Path, save: Callable[[str, SaveKind], SavedWeights], kind: SaveKind) -> None:
        """Lets ``save`` write a reserved folder and marks it complete."""
        started = time.monotonic()
        saved = save(str(path), kind)
        (path / MARKER).touch()
        seconds = time.monotonic() - started
        log.info("wrote %s: %.1f MB in %.3f s", path.name, saved.size_bytes / 1e6, seconds)

    def drop(self, version: str) -> None:
        """Removes a version's folder, if it is one of this exchange."""
        path = self._held.pop(version, None)
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Removes everything."""
        self._own.remove()


def wait_stable(path: Path, seconds: float) -> None:
    """Waits for a complete folder: one with a marker, or one that was written under another name and renamed.

    Raises RuntimeFault (server) when the deadline passes.
    """
    deadline = time.monotonic() + seconds
    complete = (MARKER, "tinker.json", "adapter_config.json", "config.json")
    while not any((path / name).is_file() for name in (complete[:1] if _is_exchange(path) else complete)):
        if time.monotonic() > deadline:
            raise RuntimeFault(
                f"the weights folder {path} is not complete after {seconds:.0f} s; is cluster.exchange_folder on a file "
                "system that all nodes share?",
                "server",
            )
        time.sleep(_POLL_SECONDS)


def _is_exchange(path: Path) -> bool:
    return path.parent.name.startswith("tinker-weights-")
