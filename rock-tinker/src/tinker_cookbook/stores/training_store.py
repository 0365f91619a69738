"""All files of one training run, by meaning instead of by name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_cookbook.stores.storage import LocalStorage, Storage

METRICS, CONFIG, CHECKPOINTS, SPANS = "metrics.jsonl", "config.json", "checkpoints.jsonl", "timing_spans.jsonl"


@dataclass(frozen=True)
class IterationInfo:
    """What is stored of one iteration."""

    iteration: int
    has_train_rollouts: bool
    has_train_logtree: bool
    eval_labels: tuple[str, ...]


class TrainingRunStore:
    """Reads and writes the files of a run."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._metrics_read = 0

    @classmethod
    def local(cls, folder: str | Path) -> TrainingRunStore:
        """Store of a local folder."""
        return cls(LocalStorage(folder))

    @property
    def url(self) -> str:
        """Where the run is."""
        return self.storage.url

    # Reading

    def _rows(self, path: str) -> list[dict[str, Any]]:
        if not self.storage.exists(path):
            return []
        rows = []
        for line in self.storage.read(path).decode("utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue  # the last line of a killed run may be cut off
        return rows

    def read_config(self) -> dict[str, Any] | None:
        """The configuration."""
        return json.loads(self.storage.read(CONFIG)) if self.storage.exists(CONFIG) else None

    def read_metrics(self) -> list[dict[str, Any]]:
        """All rows of metrics."""
        return self._rows(METRICS)

    def read_new_metrics(self) -> list[dict[str, Any]]:
        """Rows since the last call."""
        rows = self.read_metrics()
        new = rows[self._metrics_read :]
        self._metrics_read = len(rows)
        return new

    def metric_keys(self) -> list[str]:
        """All keys that occur."""
        return sorted({key for row in self.read_metrics() for key in row})

    def read_checkpoints(self) -> list[dict[str, Any]]:
        """Checkpoint records."""
        return self._rows(CHECKPOINTS)

    def read_timing(self) -> list[dict[str, Any]]:
        """Spans."""
        return self._rows(SPANS)

    def read_rollouts(self, iteration: int, base_name: str = "train") -> list[dict[str, Any]]:
        """Rollout summaries of an iteration."""
        return self._rows(f"{_folder(iteration)}/{base_name}_rollout_summaries.jsonl")

    def read_single_rollout(
        self, iteration: int, group_idx: int, traj_idx: int, base_name: str = "train"
    ) -> dict[str, Any] | None:
        """One of them."""
        found = (
            r
            for r in self.read_rollouts(iteration, base_name)
            if (r["group_idx"], r["traj_idx"]) == (group_idx, traj_idx)
        )
        return next(found, None)

    def read_logtree(self, iteration: int, base_name: str = "train") -> dict[str, Any] | None:
        """Report tree of an iteration."""
        path = f"{_folder(iteration)}/{base_name}_logtree.json"
        return json.loads(self.storage.read(path)) if self.storage.exists(path) else None

    def list_iterations(self) -> list[IterationInfo]:
        """Iterations with stored files."""
        found = []
        for name in self.storage.list_dir():
            if not name.startswith("iteration_"):
                continue
            files = self.storage.list_dir(name)
            labels = sorted(
                file.removeprefix("eval_").removesuffix("_logtree.json")
                for file in files
                if file.startswith("eval_") and file.endswith("_logtree.json")
            )
            found.append(
                IterationInfo(
                    iteration=int(name.removeprefix("iteration_")),
                    has_train_rollouts="train_rollout_summaries.jsonl" in files,
                    has_train_logtree="train_logtree.json" in files,
                    eval_labels=tuple(labels),
                )
            )
        return found

    # Writing

    def write_config(self, config: dict[str, Any]) -> None:
        """Replace the configuration."""
        self.storage.write(CONFIG, json.dumps(config, indent=2, ensure_ascii=False).encode())

    def write_code_diff(self, diff: str) -> None:
        """Uncommitted changes of the code."""
        self.storage.write("code.diff", diff.encode())

    def write_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Append a row; ``step`` comes first in it."""
        row = metrics if step is None else {"step": step, **metrics}
        self.storage.append(METRICS, (json.dumps(row, default=float) + "\n").encode())

    def truncate_metrics(self, from_step: int) -> int:
        """Drop rows of ``from_step`` and later (a resumed run writes them again); the old file stays as
        ``metrics.jsonl.pre_resume_<from_step>``. Returns the number of dropped rows."""
        rows = self.read_metrics()
        kept = [row for row in rows if row.get("step") is None or row["step"] < from_step]
        if len(kept) == len(rows):
            return 0
        self.storage.write(f"{METRICS}.pre_resume_{from_step}", self.storage.read(METRICS))
        self.storage.write(METRICS, "".join(json.dumps(row) + "\n" for row in kept).encode())
        return len(rows) - len(kept)

    def write_timing_spans(self, step: int, spans: Iterable[dict[str, Any]]) -> None:
        """Append the spans of a step."""
        lines = "".join(json.dumps({"step": step, **span}) + "\n" for span in spans)
        self.storage.append(SPANS, lines.encode())

    def write_checkpoint(self, record: dict[str, Any]) -> None:
        """Append a checkpoint record."""
        self.storage.append(CHECKPOINTS, (json.dumps(record) + "\n").encode())

    def write_rollouts(self, iteration: int, records: Iterable[dict[str, Any]], base_name: str = "train") -> None:
        """Replace the rollout summaries of an iteration."""
        text = "".join(json.dumps(row, default=str) + "\n" for row in records)
        self.storage.write(f"{_folder(iteration)}/{base_name}_rollout_summaries.jsonl", text.encode())


def _folder(iteration: int) -> str:
    return f"iteration_{iteration:06d}"
