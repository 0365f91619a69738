"""Find the runs below one or several folders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tinker_cookbook.stores.eval_store import EvalStore
from tinker_cookbook.stores.storage import Storage, storage_join
from tinker_cookbook.stores.training_store import CHECKPOINTS, CONFIG, METRICS, SPANS, TrainingRunStore

Status: TypeAlias = Literal["running", "completed", "idle"]
TrainingType: TypeAlias = Literal["rl", "sl", "dpo"]

_RUNNING_SECONDS = 120
_DEPTH = 3


@dataclass(frozen=True)
class RunInfo:
    """What is known of a run, whose files are below ``prefix`` of its storage.

    ``status``: completed (the last checkpoint is the final one), running (metrics changed within two minutes) or idle.
    """

    run_id: str
    prefix: str
    has_config: bool
    has_metrics: bool
    has_checkpoints: bool
    has_timing: bool
    iteration_count: int
    status: Status
    last_updated: float | None
    training_type: TrainingType | None


class RunRegistry:
    """Runs in the folders below the roots of some storages, found once and again with ``refresh``.

    A folder with a configuration or metrics is a run, named by its path; a root that is one itself is called ``root``.
    Of two runs with one name the one in the later storage counts.
    """

    def __init__(self, storages: Sequence[Storage], eval_prefixes: Sequence[str] = ("eval", "eval_store", "")) -> None:
        self._storages = list(storages)
        self._eval_prefixes = tuple(eval_prefixes)
        self._found: dict[str, tuple[RunInfo, Storage]] | None = None

    @property
    def storage_count(self) -> int:
        """Number of storages."""
        return len(self._storages)

    @property
    def primary_storage(self) -> Storage:
        """The first storage."""
        return self._storages[0]

    def storage_for(self, run_id: str) -> Storage:
        """Storage of a run; the first one for a run that is not known."""
        known = self._known().get(run_id)
        return known[1] if known else self.primary_storage

    def refresh(self) -> list[RunInfo]:
        """Look again."""
        self._found = {}
        for storage in self._storages:
            for prefix in _prefixes(storage, "", _DEPTH):
                run = _inspect(storage, prefix)
                self._found[run.run_id] = (run, storage)
        return self.get_runs()

    def get_runs(self) -> list[RunInfo]:
        """All runs by name."""
        return [run for _, (run, _) in sorted(self._known().items())]

    def get_run(self, run_id: str) -> RunInfo | None:
        """One run; None without it."""
        known = self._known().get(run_id)
        return known[0] if known else None

    def get_training_store(self, run_id: str) -> TrainingRunStore:
        """The files of a run."""
        run = self.get_run(run_id)
        return TrainingRunStore(self.storage_for(run_id), run.prefix if run else run_id)

    def get_eval_store(self) -> EvalStore | None:
        """The first folder of evaluation runs in any storage; None without one."""
        for storage in self._storages:
            for prefix in self._eval_prefixes:
                if storage.exists(storage_join(prefix, "runs.jsonl")):
                    return EvalStore(storage, prefix)
        return None

    def _known(self) -> dict[str, tuple[RunInfo, Storage]]:
        if self._found is None:
            self.refresh()
        return self._found or {}


def _prefixes(storage: Storage, prefix: str, depth: int) -> list[str]:
    """Folders of runs, ``depth`` levels down."""
    children = storage.list_dir(prefix)
    found = [prefix] if CONFIG in children or METRICS in children else []
    if depth and not (found and prefix):
        for name in children:
            found += _prefixes(storage, storage_join(prefix, name), depth - 1)
    return found


def _inspect(storage: Storage, prefix: str) -> RunInfo:
    store = TrainingRunStore(storage, prefix)
    names = storage.list_dir(prefix)
    changed = storage.stat(storage_join(prefix, METRICS))
    updated = changed.mtime if changed else None
    final = any(record.get("final") for record in store.read_checkpoints()[-1:])  # a finished run may have gone on
    recent = updated is not None and time.time() - updated < _RUNNING_SECONDS
    return RunInfo(
        run_id=prefix or "root",
        prefix=prefix,
        has_config=CONFIG in names,
        has_metrics=METRICS in names,
        has_checkpoints=CHECKPOINTS in names,
        has_timing=SPANS in names,
        iteration_count=sum(name.startswith("iteration_") for name in names),
        status="completed" if final else "running" if recent else "idle",
        last_updated=updated,
        training_type=_training_type(store.read_config() or {}),
    )


def _training_type(config: dict[str, Any]) -> TrainingType | None:
    kinds: dict[str, TrainingType] = {"dpo_beta": "dpo", "loss_fn": "rl", "num_epochs": "sl"}
    return next((kind for key, kind in kinds.items() if key in config), None)
