"""Follow a JSONL file that another process writes."""

from __future__ import annotations

import json
from typing import Any

from tinker_cookbook.stores.storage import Storage


class IncrementalReader:
    """Reads only what was appended since the last call. A file that shrank is read again from its start."""

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage, self._path = storage, path
        self._offset = 0
        self.records: list[dict[str, Any]] = []

    @property
    def total_read(self) -> int:
        """Rows so far."""
        return len(self.records)

    @property
    def known_keys(self) -> list[str]:
        """Keys that occurred so far."""
        return sorted({key for row in self.records for key in row})

    def has_data(self) -> bool:
        """Whether the file is longer than what was read."""
        found = self._storage.stat(self._path)
        return found is not None and found.size > self._offset

    def read(self) -> list[dict[str, Any]]:
        """New complete rows."""
        found = self._storage.stat(self._path)
        if found is None:
            return []
        if found.size < self._offset:
            self._offset, self.records = 0, []
        data = self._storage.read_range(self._path, self._offset)
        end = data.rfind(b"\n") + 1
        self._offset += end
        new = [json.loads(line) for line in data[:end].splitlines() if line.strip()]
        self.records.extend(new)
        return new
