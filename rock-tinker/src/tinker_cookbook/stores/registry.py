"""Find training runs under a folder."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tinker_cookbook.stores.storage import Storage, storage_from_uri
from tinker_cookbook.stores.training_store import CHECKPOINTS, CONFIG, METRICS, SPANS, TrainingRunStore


@dataclass(frozen=True)
class RunInfo:
    """What is known of a run. ``status``: finished, running (changed within ten minutes) or stopped."""

    run_id: str
    has_config: bool
    has_metrics: bool
    has_checkpoints: bool
    has_timing: bool
    iteration_count: int
    status: str
    last_updated: float | None
    training_type: str


class RunRegistry:
    """Runs in the folders below a root (a local path or a URL)."""

    def __init__(self, root: str) -> None:
        self.storage: Storage = storage_from_uri(root)
        self.root = root

    def get_runs(self) -> list[RunInfo]:
        """All runs, the newest first."""
        runs = [self._inspect(name) for name in self._run_names("", depth=3)]
        return sorted(runs, key=lambda run: run.last_updated or 0.0, reverse=True)

    def get_run(self, run_id: str) -> RunInfo | None:
        """One run."""
        return self._inspect(run_id) if run_id in self._run_names("", depth=3) else None

    def get_training_store(self, run_id: str) -> TrainingRunStore:
        """The files of a run."""
        return TrainingRunStore(storage_from_uri(f"{self.root.rstrip('/')}/{run_id}"))

    def _run_names(self, prefix: str, depth: int) -> list[str]:
        found = []
        for name in self.storage.list_dir(prefix):
            path = f"{prefix}/{name}" if prefix else name
            children = self.storage.list_dir(path)
            if CONFIG in children or METRICS in children:
                found.append(path)
            elif depth > 1 and children:
                found += self._run_names(path, depth - 1)
        return found

    def _inspect(self, run_id: str) -> RunInfo:
        names = self.storage.list_dir(run_id)
        store = self.get_training_store(run_id)
        changed = self.storage.stat(f"{run_id}/{METRICS}") or self.storage.stat(f"{run_id}/{CONFIG}")
        final = any(record.get("final") for record in store.read_checkpoints())
        recent = changed is not None and time.time() - changed.mtime < 600
        iterations = sum(name.startswith("iteration_") for name in names)
        return RunInfo(
            run_id=run_id,
            has_config=CONFIG in names,
            has_metrics=METRICS in names,
            has_checkpoints=CHECKPOINTS in names,
            has_timing=SPANS in names,
            iteration_count=iterations,
            status="finished" if final else "running" if recent else "stopped",
            last_updated=changed.mtime if changed else None,
            training_type="rl" if iterations else "supervised",
        )
