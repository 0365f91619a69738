"""Results of evaluation runs: one folder a run, one folder a benchmark in it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tinker_cookbook.stores.storage import LocalStorage, Storage


@dataclass
class RunMetadata:
    """What was evaluated."""

    run_id: str
    model_name: str
    checkpoint_path: str | None = None
    checkpoint_name: str | None = None
    benchmarks: list[str] = field(default_factory=list)
    timestamp: float = field(default_factory=time.time)
    config: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> RunMetadata:
        """From the JSON form."""
        return cls(**row)


class EvalStore:
    """Reads and writes evaluation runs."""

    def __init__(self, root: str | Path | Storage) -> None:
        self.storage: Storage = LocalStorage(root) if isinstance(root, str | Path) else root

    @property
    def url(self) -> str:
        """Where the runs are."""
        return self.storage.url

    def create_run(self, metadata: RunMetadata) -> str:
        """Store the description of a new run. Returns its id."""
        self._write(f"{metadata.run_id}/metadata.json", metadata.to_dict())
        return metadata.run_id

    def finalize_run(self, run_id: str, scores: dict[str, float]) -> None:
        """Add the scores."""
        metadata = self.read_run(run_id)
        metadata.scores = scores
        self._write(f"{run_id}/metadata.json", metadata.to_dict())

    def list_runs(self) -> list[RunMetadata]:
        """All runs, the newest first."""
        names = [name for name in self.storage.list_dir() if self.storage.exists(f"{name}/metadata.json")]
        return sorted((self.read_run(name) for name in names), key=lambda run: run.timestamp, reverse=True)

    def read_run(self, run_id: str) -> RunMetadata:
        """Description of a run. Raises FileNotFoundError."""
        return RunMetadata.from_dict(json.loads(self.storage.read(f"{run_id}/metadata.json")))

    def list_benchmarks(self, run_id: str) -> list[str]:
        """Benchmarks with results."""
        return [n for n in self.storage.list_dir(run_id) if self.storage.exists(f"{run_id}/{n}/result.json")]

    def write_result(self, run_id: str, benchmark: str, result: dict[str, Any]) -> None:
        """Result of a benchmark."""
        self._write(f"{run_id}/{benchmark}/result.json", result)

    def read_result(self, run_id: str, benchmark: str) -> dict[str, Any]:
        """Result of a benchmark. Raises FileNotFoundError."""
        return dict(json.loads(self.storage.read(f"{run_id}/{benchmark}/result.json")))

    def write_trajectory(self, run_id: str, benchmark: str, trajectory: dict[str, Any]) -> None:
        """Append a trajectory."""
        line = json.dumps(trajectory, ensure_ascii=False, default=str) + "\n"
        self.storage.append(f"{run_id}/{benchmark}/trajectories.jsonl", line.encode())

    def read_trajectories(self, run_id: str, benchmark: str) -> list[dict[str, Any]]:
        """All trajectories of a benchmark."""
        path = f"{run_id}/{benchmark}/trajectories.jsonl"
        if not self.storage.exists(path):
            return []
        return [json.loads(line) for line in self.storage.read(path).decode().splitlines() if line.strip()]

    def delete_run(self, run_id: str) -> None:
        """Remove a run."""
        self.storage.remove_dir(run_id)

    def _write(self, path: str, row: dict[str, Any]) -> None:
        self.storage.write(path, json.dumps(row, indent=2, ensure_ascii=False, default=str).encode())
