"""Agent rollouts on SWE tasks and training on them.

A rollout is a Harbor job in a ROCK sandbox. The agent's model calls are taken out by the pull runner, answered by the
policy through a Tinker sampling client, and recorded token by token; the verifier's reward becomes the advantage.
"""

from tinker_cookbook.swe.advantages import group_advantages, penalise_kl, spread
from tinker_cookbook.swe.budget import Deadline, TokenBudget
from tinker_cookbook.swe.chat_format import ChatFormat
from tinker_cookbook.swe.errors import (
    BackendFailed,
    DeadlineExceeded,
    RequestRefused,
    RolloutFailed,
    SettingError,
    SweError,
)
from tinker_cookbook.swe.policy import Completion, Conversation, Policy, TokenSampler
from tinker_cookbook.swe.pull_runner import pull
from tinker_cookbook.swe.rollout import AgentJob, Rollout, roll_out
from tinker_cookbook.swe.sequences import TokenSequence, datum, merge_turns
from tinker_cookbook.swe.trajectory import Trajectory, Turn

__all__ = [
    "AgentJob",
    "BackendFailed",
    "ChatFormat",
    "Completion",
    "Conversation",
    "Deadline",
    "DeadlineExceeded",
    "Policy",
    "RequestRefused",
    "Rollout",
    "RolloutFailed",
    "SettingError",
    "SweError",
    "TokenBudget",
    "TokenSampler",
    "TokenSequence",
    "Trajectory",
    "Turn",
    "datum",
    "group_advantages",
    "merge_turns",
    "penalise_kl",
    "pull",
    "roll_out",
    "spread",
]
