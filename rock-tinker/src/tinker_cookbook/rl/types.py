"""The vocabulary of reinforcement learning: environments, trajectories, groups, datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias, TypedDict

import chz

import tinker
from tinker_cookbook.completers import StopCondition, TokensWithLogprobs

Action: TypeAlias = list[int]
Observation: TypeAlias = tinker.ModelInput
Logprobs: TypeAlias = list[float]
Metrics: TypeAlias = dict[str, float | int]
Logs: TypeAlias = dict[str, str | int | float]


STOP_METRIC_PREFIX = "stop/"
"""Metric of the last turn: ``stop/<reason>``."""
PARSE_ERROR_MASKED_METRIC_KEY = "parse_error_masked"
"""Metric by which an environment marks a turn whose tokens must not be trained (an action that cannot be read)."""


class StopReason(StrEnum):
    """Why an episode ended."""

    COMPLETED = "completed"
    TOOL_STOPPED = "tool_stopped"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    MAX_SAMPLED_TOKENS = "max_sampled_tokens"
    MAX_TOOL_CALLS = "max_tool_calls"
    CONTEXT_OVERFLOW = "context_overflow"
    PARSE_ERROR = "parse_error"
    ROLLOUT_TIMEOUT = "rollout_timeout"


class ActionExtra(TypedDict, total=False):
    """What an environment may want to know about an action besides its tokens: "stop" or "length"."""

    stop_reason: str


@dataclass
class InitialObservationOverflow:
    """The first prompt is already too long: the episode ends before it began."""

    reward: float
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)


@dataclass
class StepResult:
    """What an action led to."""

    reward: float
    episode_done: bool
    next_observation: Observation
    next_stop_condition: StopCondition
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)


@dataclass
class Transition:
    """Observation, action, reward."""

    ob: Observation
    ac: TokensWithLogprobs
    reward: float
    episode_done: bool
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)


class Env(ABC):
    """One episode. An environment is used once."""

    @abstractmethod
    async def initial_observation(self) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        """First prompt and its stop condition."""

    @abstractmethod
    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Take the sampled tokens (with stop token)."""


@dataclass(frozen=True)
class Trajectory:
    """A finished episode; ``final_ob`` is the observation after the last action."""

    transitions: list[Transition]
    final_ob: Observation
    stop_reason: StopReason | str | None = None


@dataclass(frozen=True)
class RolloutError:
    """A rollout that failed."""

    error_type: str
    error_message: str


class EnvGroupBuilder(ABC):
    """Makes the environments of one group (usually: one problem, several attempts). Must be picklable."""

    @abstractmethod
    async def make_envs(self) -> Sequence[Env]:
        """Fresh environments."""

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        """Reward of each trajectory that depends on the whole group, and metrics; zeros by default."""
        return [(0.0, {}) for _ in trajectory_group]

    async def cleanup(self) -> None:
        """Release what ``make_envs`` took; called once, also after errors."""
        return None

    def logging_tags(self) -> list[str]:
        """Names under which metrics are also shown apart."""
        return []


@dataclass
class TrajectoryGroup:
    """Trajectories of one group with their group rewards."""

    trajectories_G: list[Trajectory]
    final_rewards_G: list[float]
    metrics_G: list[Metrics]
    rollout_errors: list[RolloutError] = field(default_factory=list)

    def get_total_rewards(self) -> list[float]:
        """Sum of step rewards and group reward of each trajectory."""
        return [
            sum(transition.reward for transition in trajectory.transitions) + final
            for trajectory, final in zip(self.trajectories_G, self.final_rewards_G, strict=True)
        ]


class RLDataset(ABC):
    """Batches of groups."""

    @abstractmethod
    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Group builders of a batch; the same ones for the same index."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of batches."""


@chz.chz
class RLDatasetBuilder:
    """Configuration from which a dataset is made."""

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Training data and held-out data."""
        raise NotImplementedError


TagList: TypeAlias = list[str]
AnyMetrics: TypeAlias = dict[str, Any]
