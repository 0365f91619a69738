"""All files of one training run, by meaning instead of by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tinker_cookbook.stores._incremental import IncrementalReader
from tinker_cookbook.stores.async_twins import in_thread
from tinker_cookbook.stores.storage import LocalStorage, Storage, StorageStat, storage_join

if TYPE_CHECKING:
    from tinker_cookbook.checkpoint_utils import CheckpointRecord

METRICS, CONFIG, CHECKPOINTS, SPANS = "metrics.jsonl", "config.json", "checkpoints.jsonl", "timing_spans.jsonl"
Loaded = TypeVar("Loaded")
_ROLLOUTS, _LOGTREE = "_rollout_summaries.jsonl", "_logtree.json"


@dataclass(frozen=True)
class IterationInfo:
    """What is stored of one iteration."""

    iteration: int
    has_train_rollouts: bool = False
    has_train_logtree: bool = False
    eval_labels: list[str] = field(default_factory=list)


class TrainingRunStore:
    """Reads and writes the files of a run, which are below ``prefix`` of a storage."""

    def __init__(self, storage: Storage, prefix: str = "") -> None:
        self.storage = storage
        self.prefix = prefix
        self._metrics = IncrementalReader(storage, self._path(METRICS), max_records=None)
        self._cache: dict[str, tuple[StorageStat | None, Any]] = {}

    @classmethod
    def local(cls, folder: str | Path) -> TrainingRunStore:
        """Store of a local folder, which is made when something is written."""
        return cls(LocalStorage(folder, mkdir=False))

    def url(self, path: str = "") -> str:
        """Address of the run or of one of its files."""
        return self.storage.url(self._path(path))

    def _path(self, *parts: str) -> str:
        return storage_join(self.prefix, *parts)

    def _in_iteration(self, iteration: int, name: str) -> str:
        return self._path(f"iteration_{iteration:06d}", name)

    # Reading

    def _remembered(self, path: str, read: Callable[[str], Loaded]) -> Loaded:
        """What was read from a file, read again only when the file has changed."""
        found = self.storage.stat(path)
        if path not in self._cache or self._cache[path][0] != found:
            self._cache[path] = found, read(path)
        loaded: Loaded = self._cache[path][1]
        return loaded

    def _rows(self, path: str) -> list[dict[str, Any]]:
        if not self.storage.exists(path):
            return []
        rows = []
        for line in self.storage.read(path).decode("utf-8").split("\n"):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # the last line of a killed run may be cut off
        return rows

    def _object(self, path: str) -> dict[str, Any] | None:
        return json.loads(self.storage.read(path)) if self.storage.exists(path) else None

    def read_config(self) -> dict[str, Any] | None:
        """The configuration; None without one."""
        return self._remembered(self._path(CONFIG), self._object)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All rows of metrics."""
        self._metrics.read()
        return self._metrics.records

    def read_new_metrics(self) -> list[dict[str, Any]]:
        """Rows since the last call of this or of ``read_metrics``."""
        return self._metrics.read()

    def metric_keys(self) -> set[str]:
        """All keys that occur, without ``step``."""
        self._metrics.read()
        return self._metrics.known_keys

    def read_checkpoints(self) -> list[dict[str, Any]]:
        """Checkpoint records as they are stored."""
        return self._rows(self._path(CHECKPOINTS))

    def read_checkpoint_records(self) -> list[CheckpointRecord]:
        """Checkpoint records."""
        from tinker_cookbook.checkpoint_utils import CheckpointRecord

        return [CheckpointRecord.from_dict(row) for row in self.read_checkpoints()]

    def read_timing(self) -> list[dict[str, Any]]:
        """A row for each step, with its number and its spans."""
        return self._rows(self._path(SPANS))

    def read_rollouts(self, iteration: int, base_name: str = "train") -> list[dict[str, Any]]:
        """Rollout summaries of an iteration."""
        return self._remembered(self._in_iteration(iteration, f"{base_name}{_ROLLOUTS}"), self._rows)

    def read_single_rollout(
        self, iteration: int, group_idx: int, traj_idx: int, base_name: str = "train"
    ) -> dict[str, Any] | None:
        """One of them; None without it."""
        for row in self.read_rollouts(iteration, base_name):
            if (row["group_idx"], row["traj_idx"]) == (group_idx, traj_idx):
                return row
        return None

    def read_logtree(self, iteration: int, base_name: str = "train") -> dict[str, Any] | None:
        """Report tree of an iteration; None without one."""
        return self._object(self._in_iteration(iteration, f"{base_name}{_LOGTREE}"))

    def list_logtrees(self, iteration: int) -> list[str]:
        """Names of the report trees of an iteration: ``train``, ``eval_test`` and so on."""
        return _with_suffix(self.storage.list_dir(self._in_iteration(iteration, "")), _LOGTREE)

    def list_iterations(self) -> list[IterationInfo]:
        """Iterations with stored files."""
        found = []
        for name in self.storage.list_dir(self._path("")):
            number = name.removeprefix("iteration_")
            if number == name or not number.isdigit():
                continue
            files = self.storage.list_dir(self._path(name))
            info = IterationInfo(
                iteration=int(number),
                has_train_rollouts=f"train{_ROLLOUTS}" in files,
                has_train_logtree=f"train{_LOGTREE}" in files,
                eval_labels=[n.removeprefix("eval_") for n in _with_suffix(files, _LOGTREE) if n.startswith("eval_")],
            )
            found.append(info)
        return found

    # Writing

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Replace the configuration."""
        self._write_object(self._path(CONFIG), config)

    def write_code_diff(self, diff: str) -> None:
        """Uncommitted changes of the code."""
        self.write_text("code.diff", diff)

    def write_text(self, name: str, text: str) -> None:
        """Replace a text file of the run."""
        self.storage.write(self._path(name), text.encode())

    def write_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append a row; ``step`` comes first in it, unless the metrics have one."""
        row = metrics if step is None else {"step": step, **metrics}
        self.storage.append(self._path(METRICS), _lines([row], default=float))

    def truncate_metrics(self, from_step: int) -> int:
        """Drop rows of ``from_step`` and later (a resumed run writes them again); the old file stays as
        ``metrics.jsonl.pre_resume_<step>``. Returns the number of dropped rows."""
        path = self._path(METRICS)
        rows = self._rows(path)
        kept = [row for row in rows if row.get("step") is None or row["step"] < from_step]
        if len(kept) == len(rows):
            return 0
        self.storage.write(f"{path}.pre_resume_{from_step:06d}", self.storage.read(path))
        self.storage.write(path, _lines(kept))
        self._metrics = IncrementalReader(self.storage, path, max_records=None)
        self._metrics.read()
        return len(rows) - len(kept)

    def write_timing_spans(self, step: int, spans: Iterable[Mapping[str, Any]]) -> None:
        """Append the spans of a step, if there are any."""
        if rows := list(spans):
            self.storage.append(self._path(SPANS), _lines([{"step": step, "spans": rows}]))

    def write_checkpoint(self, record: Mapping[str, Any]) -> None:
        """Append a checkpoint record."""
        self.storage.append(self._path(CHECKPOINTS), _lines([record]))

    def write_rollouts(self, iteration: int, records: Iterable[Mapping[str, Any]], base_name: str = "train") -> None:
        """Replace the rollout summaries of an iteration."""
        path = self._in_iteration(iteration, f"{base_name}{_ROLLOUTS}")
        self.storage.write(path, _lines(records, default=str))

    def write_logtree(self, iteration: int, data: Mapping[str, Any], base_name: str = "train") -> None:
        """Replace a report tree of an iteration."""
        self._write_object(self._in_iteration(iteration, f"{base_name}{_LOGTREE}"), data)

    aread_config = in_thread(read_config)
    aread_metrics = in_thread(read_metrics)
    aread_new_metrics = in_thread(read_new_metrics)
    aread_rollouts = in_thread(read_rollouts)
    aread_checkpoints = in_thread(read_checkpoints)
    aread_timing = in_thread(read_timing)
    aread_logtree = in_thread(read_logtree)
    awrite_metrics = in_thread(write_metrics)
    awrite_checkpoint = in_thread(write_checkpoint)

    def _write_object(self, path: str, row: Mapping[str, Any]) -> None:
        self.storage.write(path, json.dumps(row, indent=2, ensure_ascii=False, default=str).encode())


def _lines(rows: Iterable[Mapping[str, Any]], default: Callable[[Any], Any] | None = None) -> bytes:
    return "".join(json.dumps(row, default=default) + "\n" for row in rows).encode()


def _with_suffix(names: Iterable[str], suffix: str) -> list[str]:
    return sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix))
