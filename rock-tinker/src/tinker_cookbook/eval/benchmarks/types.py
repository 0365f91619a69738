"""Benchmarks: what one is, how it is run, what comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import tinker
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.types import Env


@dataclass(frozen=True)
class BenchmarkConfig:
    """How a benchmark is run. ``num_samples``: attempts per example (pass@k for every k up to it)."""

    max_examples: int | None = None
    concurrency: int = 64
    timeout_seconds: float = 600.0
    max_tokens: int = 1024
    temperature: float = 0.0
    context_window: int | None = None
    save_dir: str | None = None
    num_samples: int = 1
    system_prompt: str | None = None
    dataset_path: str | None = None
    judge_sampling_client: tinker.SamplingClient | None = None
    judge_renderer: Renderer | None = None
    sandbox_factory: Callable[..., Any] | None = None


@dataclass
class StoredTurn:
    """One message of a stored trajectory."""

    role: str
    content: str
    token_count: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class StoredTrajectory:
    """One attempt at one example."""

    idx: int
    benchmark: str
    example_id: str
    turns: list[StoredTurn]
    reward: float
    metrics: dict[str, float] = field(default_factory=dict)
    logs: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    time_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> StoredTrajectory:
        """From the JSON form."""
        return cls(**{**row, "turns": [StoredTurn(**turn) for turn in row["turns"]]})


@dataclass
class BenchmarkResult:
    """Outcome of a benchmark. ``score`` counts errors as wrong, ``score_completed`` leaves them out."""

    name: str
    score: float
    num_examples: int
    num_correct: int
    num_errors: int = 0
    num_truncated: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    time_seconds: float = 0.0
    pass_at_k: dict[int, float] = field(default_factory=dict)

    @property
    def num_completed(self) -> int:
        """Examples without error."""
        return self.num_examples - self.num_errors

    @property
    def score_completed(self) -> float:
        """Share of right answers among examples without error."""
        return self.num_correct / self.num_completed if self.num_completed else 0.0


@dataclass(frozen=True)
class BenchmarkExample:
    """One example: a name and a way to make its environment."""

    example_id: str
    make_env: Callable[[], Env]


class BenchmarkBuilder(ABC):
    """Makes the examples of a benchmark."""

    name: str
    multi_turn: bool = False
    requires_sandbox: bool = False
    requires_judge: bool = False

    @abstractmethod
    def make_examples(self, renderer: Renderer, config: BenchmarkConfig) -> Sequence[BenchmarkExample]:
        """All examples (at most ``config.max_examples``)."""

    def is_correct(self, trajectory: StoredTrajectory) -> bool:
        """Whether an attempt counts as solved."""
        return trajectory.error is None and trajectory.metrics.get("correct", trajectory.reward) >= 0.5
