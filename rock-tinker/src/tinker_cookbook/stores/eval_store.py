"""Results of evaluation runs: ``runs/<run>/<benchmark>/`` with one result and the trajectories behind it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker_cookbook.stores.async_twins import in_thread
from tinker_cookbook.stores.storage import LocalStorage, Storage, storage_from_uri, storage_join

if TYPE_CHECKING:
    from tinker_cookbook.eval.benchmarks.types import BenchmarkResult, StoredTrajectory

_INDEX, _METADATA, _RESULT, _TRAJECTORIES, _SUMMARY = (
    "runs.jsonl",
    "metadata.json",
    "result.json",
    "trajectories.jsonl",
    "summary.json",
)


@dataclass
class RunMetadata:
    """What was evaluated and, once the run is finalized, its score in every benchmark. ``timestamp`` is ISO 8601."""

    run_id: str
    model_name: str
    checkpoint_path: str | None
    checkpoint_name: str | None
    benchmarks: list[str]
    timestamp: str
    config: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> RunMetadata:
        """From the JSON form; unknown keys are left out."""
        known = {f.name for f in fields(cls)}
        return cls(**{key: value for key, value in d.items() if key in known})


class EvalStore:
    """Reads and writes evaluation runs below ``prefix`` of a storage (or of a path or URL)."""

    def __init__(self, storage_or_path: Storage | str | Path, prefix: str = "") -> None:
        if isinstance(storage_or_path, str):
            self.storage: Storage = storage_from_uri(storage_or_path)
        else:
            self.storage = LocalStorage(storage_or_path) if isinstance(storage_or_path, Path) else storage_or_path
        self.prefix = prefix

    def url(self, path: str = "") -> str:
        """Address of the store or of a path in it."""
        return self.storage.url(storage_join(self.prefix, path))

    def _path(self, *parts: str) -> str:
        return storage_join(self.prefix, *parts)

    def _run_path(self, run_id: str, *parts: str) -> str:
        return self._path("runs", run_id, *parts)

    def run_dir(self, run_id: str) -> str:
        """Folder of a run: a path where the storage is local, else a URL. Fits ``BenchmarkConfig.save_dir``."""
        return self.storage.url(self._run_path(run_id)).removeprefix("file://")

    # Runs

    def create_run(
        self,
        model_name: str,
        benchmarks: Sequence[str],
        checkpoint_path: str | None = None,
        checkpoint_name: str | None = None,
        config: dict[str, Any] | None = None,
        run_id: str | None = None,
    ) -> str:
        """Store the description of a new run. Returns its id, made of checkpoint, time and a random part if none is given."""
        now = datetime.now()
        run_id = run_id or f"{checkpoint_name or 'base'}_{now:%Y%m%d_%H%M%S}_{uuid.uuid4().hex[:6]}"
        run = RunMetadata(
            run_id, model_name, checkpoint_path, checkpoint_name, list(benchmarks), now.isoformat(), config or {}
        )
        self._write(self._run_path(run_id, _METADATA), run.to_dict())
        row = {"run_id": run_id, "timestamp": run.timestamp, "model": model_name, "checkpoint": checkpoint_name}
        self.storage.append(self._path(_INDEX), (json.dumps(row) + "\n").encode())
        return run_id

    def finalize_run(self, run_id: str) -> RunMetadata:
        """Write the scores of its benchmarks that have a result into the description of the run. Raises FileNotFoundError."""
        run = self.read_run(run_id)
        results = {name: self._read(self._run_path(run_id, name, _RESULT)) for name in run.benchmarks}
        run.scores = {name: row["score"] for name, row in results.items() if row is not None}
        self._write(self._run_path(run_id, _METADATA), run.to_dict())
        return run

    def list_runs(self) -> list[RunMetadata]:
        """All runs, the newest first."""
        names = self.storage.list_dir(self._path("runs"))
        runs = [self.read_run(name) for name in names if self.storage.exists(self._run_path(name, _METADATA))]
        return sorted(runs, key=lambda run: run.timestamp, reverse=True)

    def read_run(self, run_id: str) -> RunMetadata:
        """Description of a run. Raises FileNotFoundError."""
        row = self._read(self._run_path(run_id, _METADATA))
        if row is None:
            raise FileNotFoundError(f"{self.url()} has no run {run_id!r}")
        return RunMetadata.from_dict(row)

    def delete_run(self, run_id: str) -> None:
        """Remove what this store has written of a run; a folder with other files in it stays."""
        names = [name for name in self.storage.list_dir(self._run_path(run_id)) if name not in (_SUMMARY, _METADATA)]
        for folder, files in (*((name, (_RESULT, _TRAJECTORIES)) for name in names), ("", (_SUMMARY, _METADATA))):
            for path in (self._run_path(run_id, folder, file) for file in files):
                if self.storage.exists(path):
                    self.storage.remove(path)
            self.storage.remove_dir(self._run_path(run_id, folder))

    # Results

    def list_benchmarks(self, run_id: str) -> list[str]:
        """Benchmarks with a result."""
        names = self.storage.list_dir(self._run_path(run_id))
        return [name for name in names if self.storage.exists(self._run_path(run_id, name, _RESULT))]

    def write_result(self, run_id: str, result: BenchmarkResult) -> None:
        """Store the result of a benchmark."""
        self._write(self._run_path(run_id, result.name, _RESULT), asdict(result))

    def read_result(self, run_id: str, benchmark: str) -> BenchmarkResult | None:
        """Result of a benchmark; None without one."""
        from tinker_cookbook.eval.benchmarks.types import BenchmarkResult

        row = self._read(self._run_path(run_id, benchmark, _RESULT))
        return None if row is None else BenchmarkResult.from_dict(row)

    def write_summary(self, run_id: str, results: Mapping[str, BenchmarkResult]) -> None:
        """Store the scores and counts of several benchmarks."""
        keys = ("score", "num_examples", "num_correct", "num_errors")
        rows = {name: {key: getattr(result, key) for key in keys} for name, result in results.items()}
        self._write(self._run_path(run_id, _SUMMARY), rows)

    def read_summary(self, run_id: str) -> dict[str, dict[str, Any]] | None:
        """Scores and counts by benchmark; None without any."""
        return self._read(self._run_path(run_id, _SUMMARY))

    # Trajectories

    def write_trajectory(self, run_id: str, benchmark: str, traj: StoredTrajectory) -> None:
        """Append a trajectory."""
        line = json.dumps(traj.to_dict(), ensure_ascii=False, default=str) + "\n"
        self.storage.append(self._run_path(run_id, benchmark, _TRAJECTORIES), line.encode())

    def read_trajectories(
        self,
        run_id: str,
        benchmark: str,
        *,
        correct_only: bool = False,
        incorrect_only: bool = False,
        errors_only: bool = False,
    ) -> list[StoredTrajectory]:
        """Trajectories of a benchmark: all, or those with a reward, without one, or that ended with an error."""
        from tinker_cookbook.eval.benchmarks.types import StoredTrajectory

        path = self._run_path(run_id, benchmark, _TRAJECTORIES)
        if not self.storage.exists(path):
            return []
        lines = self.storage.read(path).decode().split("\n")
        found = [StoredTrajectory.from_dict(row) for row in map(_row, lines) if row is not None]
        tests: dict[Callable[[StoredTrajectory], bool], bool] = {
            lambda t: t.error is None and t.reward > 0: correct_only,
            lambda t: t.error is None and t.reward <= 0: incorrect_only,
            lambda t: t.error is not None: errors_only,
        }
        return [t for t in found if all(test(t) for test, wanted in tests.items() if wanted)]

    def read_single_trajectory(self, run_id: str, benchmark: str, idx: int) -> StoredTrajectory | None:
        """The trajectory with this number; None without it."""
        return next((t for t in self.read_trajectories(run_id, benchmark) if t.idx == idx), None)

    alist_runs = in_thread(list_runs)
    aread_result = in_thread(read_result)
    aread_trajectories = in_thread(read_trajectories)

    def _write(self, path: str, row: Mapping[str, Any]) -> None:
        self.storage.write(path, json.dumps(row, indent=2, ensure_ascii=False, default=str).encode())

    def _read(self, path: str) -> dict[str, Any] | None:
        return dict(json.loads(self.storage.read(path))) if self.storage.exists(path) else None


def _row(line: str) -> dict[str, Any] | None:
    """A line of JSON; None if it is empty or was cut off when its writer was killed."""
    try:
        return dict(json.loads(line)) if line.strip() else None
    except ValueError:
        return None
