"""Benchmarks: what one is, how it is run, what comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict

import tinker
from tinker_cookbook import model_info
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.types import Env

Metrics: TypeAlias = dict[str, float | int]
Logs: TypeAlias = dict[str, Any]
PassAtKScores: TypeAlias = dict[int, float]
TurnRole: TypeAlias = Literal["user", "assistant", "environment", "grader"]


class StoredTurnDict(TypedDict):
    """JSON form of ``StoredTurn``."""

    role: TurnRole
    content: str
    token_count: int
    metadata: dict[str, Any]


class StoredTrajectoryDict(TypedDict):
    """JSON form of ``StoredTrajectory``."""

    idx: int
    benchmark: str
    example_id: str
    turns: list[StoredTurnDict]
    reward: float
    metrics: Metrics
    logs: Logs
    error: str | None
    time_seconds: float


class BenchmarkResultDict(TypedDict):
    """JSON form of ``BenchmarkResult``; the k of ``pass_at_k`` are texts."""

    name: str
    score: float
    num_examples: int
    num_correct: int
    num_errors: int
    num_truncated: int
    metrics: Metrics
    time_seconds: float
    pass_at_k: dict[str, float]


@dataclass
class BenchmarkConfig:
    """How a benchmark is run. ``num_samples``: attempts per example (pass@k for every k up to it).

    ``agent_concurrency`` takes the place of ``concurrency`` for benchmarks of several turns. ``grade_fn(answer, logs)`` takes
    the place of the benchmark's own reward. ``dataset_path``: a folder or file instead of the hub's data.
    """

    max_examples: int | None = None
    concurrency: int = 64
    agent_concurrency: int = 8
    timeout_seconds: float = 300
    max_trajectory_tokens: int | None = None
    max_generation_tokens: int | None = None
    max_tokens: int = 32768
    temperature: float = 0.6
    context_window: int | None = None
    save_dir: str | None = None
    num_samples: int = 1
    judge_sampling_client: tinker.SamplingClient | None = None
    judge_renderer: Renderer | None = None
    sandbox_factory: Callable[..., Any] | None = None
    system_prompt: str | None = None
    grade_fn: Callable[[str, Logs], float] | None = None
    dataset_path: str | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "agent_concurrency", "timeout_seconds", "max_tokens", "num_samples"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be above 0")
        for name in ("max_examples", "context_window"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be above 0, or None")
        if self.temperature < 0:
            raise ConfigurationError(f"temperature={self.temperature} must not be negative")

    @classmethod
    def for_model(cls, model_name: str, **overrides: Any) -> BenchmarkConfig:
        """A configuration with room for long answers: a window of 32768 tokens and half an hour an example."""
        model_info.get_model_attributes(model_name)
        return cls(**{"context_window": 32768, "timeout_seconds": 1800.0, **overrides})


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
    example_id: str = ""
    turns: list[StoredTurn] = field(default_factory=list)
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    logs: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    time_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> StoredTrajectory:
        """From the JSON form."""
        return cls(**{**d, "turns": [StoredTurn(**turn) for turn in d.get("turns", [])]})


@dataclass
class BenchmarkResult:
    """Outcome of a benchmark. ``score`` counts errors and answers that were cut off as wrong, ``score_completed`` leaves
    them out."""

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
        """Examples that ended without error and were not cut off."""
        return self.num_examples - self.num_errors - self.num_truncated

    @property
    def score_completed(self) -> float:
        """Share of right answers among completed examples."""
        return self.num_correct / self.num_completed if self.num_completed else 0.0

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> BenchmarkResult:
        """From the JSON form."""
        return cls(**{**d, "pass_at_k": {int(k): value for k, value in d.get("pass_at_k", {}).items()}})


@dataclass(frozen=True)
class BenchmarkExample:
    """One example: a name and a way to make its environment."""

    example_id: str
    make_env: Callable[[], Env]


class BenchmarkBuilder(ABC):
    """Makes the environments of a benchmark. A reward above 0 counts as solved.

    An environment may have an attribute ``example_id``; else its place in the sequence is its name.
    """

    name: str
    multi_turn: bool = False
    recommended_timeout: float = 300
    recommended_system_prompt: str | None = None
    experimental: bool = False
    requires_sandbox: bool = False
    requires_judge: bool = False

    @abstractmethod
    def make_envs(self, renderer: Renderer, config: BenchmarkConfig) -> Sequence[Env]:
        """An environment for every example (at most ``config.max_examples``)."""

    def make_examples(self, renderer: Renderer, config: BenchmarkConfig) -> Sequence[BenchmarkExample]:
        """The examples; every attempt gets an environment of its own."""
        first = list(self.make_envs(renderer, config))
        spare = [first, *(list(self.make_envs(renderer, config)) for _ in range(config.num_samples - 1))]

        def example(place: int) -> BenchmarkExample:
            left = [envs[place] for envs in spare]
            name = str(getattr(first[place], "example_id", None) or f"{self.name}-{place}")
            return BenchmarkExample(name, left.pop)

        return [example(place) for place in range(len(first))]

    def aggregate(self, rewards: list[float], metrics_list: list[Metrics]) -> BenchmarkResult:
        """The result of the rewards and metrics of all examples."""
        correct = sum(reward > 0 for reward in rewards)
        return BenchmarkResult(self.name, correct / len(rewards) if rewards else 0.0, len(rewards), correct)

    def is_correct(self, trajectory: StoredTrajectory) -> bool:
        """Whether an attempt counts as solved."""
        return trajectory.error is None and trajectory.metrics.get("correct", trajectory.reward) > 0
