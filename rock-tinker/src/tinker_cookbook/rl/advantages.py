"""Advantage estimators: from the rewards of a group to one number per trajectory, or per turn.

======================  =============================================================================
``mean_centered``       total reward − group mean (default; no division by the deviation)
``std_normalized``      the same, divided by the group's deviation + 1e-6 (GRPO)
``rloo``                total reward − mean of the *other* trajectories (leave one out)
``gae``                 per turn: generalised advantage estimation over turn rewards; the value of turn t
                        is the group's mean discounted return from turn t on; group rewards count as
                        rewards of the last turn
======================  =============================================================================
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.types import TrajectoryGroup

AdvantageEstimator: TypeAlias = Literal["mean_centered", "std_normalized", "rloo", "gae"]
Advantages: TypeAlias = "np.ndarray"

_EPS = 1e-6


def estimate_advantages(
    group: TrajectoryGroup, estimator: AdvantageEstimator = "mean_centered", gamma: float = 1.0, gae_lambda: float = 1.0
) -> list[Advantages]:
    """Advantages of each trajectory of a group: arrays of one number, or (gae) of one number per turn."""
    if estimator == "gae":
        return _gae(group, gamma, gae_lambda)
    rewards_G = np.asarray(group.get_total_rewards(), dtype=np.float64)
    centered_G = rewards_G - rewards_G.mean() if len(rewards_G) else rewards_G
    if estimator == "std_normalized":
        centered_G = centered_G / (rewards_G.std(ddof=1 if len(rewards_G) > 1 else 0) + _EPS)
    elif estimator == "rloo":
        count = len(rewards_G)
        centered_G = centered_G * (count / (count - 1)) if count > 1 else centered_G
    elif estimator != "mean_centered":
        raise ConfigurationError(
            f"advantage_estimator={estimator!r} is unknown; use mean_centered, std_normalized, rloo or gae"
        )
    return [np.asarray([value]) for value in centered_G]


def _gae(group: TrajectoryGroup, gamma: float, gae_lambda: float) -> list[Advantages]:
    rewards_G: list[np.ndarray] = []
    for trajectory, final in zip(group.trajectories_G, group.final_rewards_G, strict=True):
        rewards_T = np.asarray([transition.reward for transition in trajectory.transitions], dtype=np.float64)
        if len(rewards_T):
            rewards_T[-1] += final
        rewards_G.append(rewards_T)
    returns_G = [_discounted_returns(rewards_T, gamma) for rewards_T in rewards_G]
    longest = max((len(rewards_T) for rewards_T in rewards_G), default=0)
    # An episode that is over has return 0 from there on, so every trajectory counts in every value.
    value_T = np.asarray([np.mean([ret[t] if t < len(ret) else 0.0 for ret in returns_G]) for t in range(longest)])
    out = []
    for rewards_T in rewards_G:
        length = len(rewards_T)
        following_T = np.append(value_T[1:length], 0.0)[:length]
        delta_T = rewards_T + gamma * following_T - value_T[:length]
        out.append(_discounted_returns(delta_T, gamma * gae_lambda))
    return out


def _discounted_returns(x_T: np.ndarray, gamma: float) -> np.ndarray:
    out_T = np.zeros_like(x_T)
    running = 0.0
    for t in range(len(x_T) - 1, -1, -1):
        running = x_T[t] + gamma * running
        out_T[t] = running
    return out_T
