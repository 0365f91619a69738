"""Follow a JSONL file that another process writes."""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import Any

from tinker_cookbook.stores.async_twins import in_thread
from tinker_cookbook.stores.storage import Storage

logger = logging.getLogger(__name__)


class IncrementalReader:
    """Reads only what was appended since the last call. A file that shrank is read again from its start.

    The newest ``max_records`` rows stay in memory (None: all). A line that is no JSON is skipped; an incomplete last line waits.
    """

    def __init__(self, storage: Storage, path: str, max_records: int | None = 50_000) -> None:
        self._storage, self._path = storage, path
        self._kept: deque[dict[str, Any]] = deque(maxlen=max_records)
        self._start_over()

    def _start_over(self) -> None:
        self._offset = 0
        self._total = 0
        self._keys: set[str] = set()
        self._kept.clear()

    @property
    def records(self) -> list[dict[str, Any]]:
        """Rows so far, the newest ``max_records`` of them."""
        return list(self._kept)

    @property
    def total_read(self) -> int:
        """Number of rows so far."""
        return self._total

    @property
    def known_keys(self) -> set[str]:
        """Keys that occurred so far, without ``step``."""
        return self._keys - {"step"}

    def has_data(self) -> bool:
        """Whether rows were read or can be."""
        return self._total > 0 or self._storage.exists(self._path)

    def read(self) -> list[dict[str, Any]]:
        """New complete rows."""
        found = self._storage.stat(self._path)
        if found is None:
            return []
        if found.size < self._offset:
            self._start_over()
        data = self._storage.read_range(self._path, self._offset)
        end = data.rfind(b"\n") + 1
        self._offset += end
        new = list(filter(None, map(self._row, data[:end].split(b"\n"))))
        self._total += len(new)
        self._kept.extend(new)
        self._keys.update(key for row in new for key in row)
        return new

    aread = in_thread(read)

    def _row(self, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            logger.warning("%s: a line is no JSON object and is skipped: %r", self._path, line[:80])
            return None
        return row
