"""Reinforcement learning: environments, rollouts, data, training."""

from tinker_cookbook.rl.dataset_utils import EpochCycledRLDataset, cycle_permutation, epoch_batch_index
from tinker_cookbook.rl.interleaved import InterleavedRLDatasetBuilder
from tinker_cookbook.rl.rollout_strategy import FailFast, RetryOnFailure, RolloutStrategy
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Logs,
    Metrics,
    Observation,
    RLDataset,
    RLDatasetBuilder,
    RolloutError,
    StepResult,
    Trajectory,
    TrajectoryGroup,
    Transition,
)

__all__ = [
    "Action",
    "ActionExtra",
    "Env",
    "EnvGroupBuilder",
    "EpochCycledRLDataset",
    "FailFast",
    "InterleavedRLDatasetBuilder",
    "Logs",
    "Metrics",
    "Observation",
    "RLDataset",
    "RLDatasetBuilder",
    "RetryOnFailure",
    "RolloutError",
    "RolloutStrategy",
    "StepResult",
    "Trajectory",
    "TrajectoryGroup",
    "Transition",
    "cycle_permutation",
    "epoch_batch_index",
]
