"""Ready combinations of limits and policies."""

from __future__ import annotations

from typing import Literal, TypeAlias

import chz

from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits, TerminationRewardPolicy
from tinker_cookbook.rl.rollout_strategy import FailFast, MinViableGroup, RolloutStrategy

ToolExecution: TypeAlias = Literal["parallel", "sequential", "concurrent_safe"]
_AGENTIC_MODELS = "thinkingmachines/Inkling"


@chz.chz
class RolloutConfig:
    """How an episode is run. ``parse_errors`` and ``termination`` None: as the environment does by itself."""

    limits: RolloutLimits = chz.field(default_factory=RolloutLimits)
    parse_errors: ParseErrorPolicy | None = None
    termination: TerminationRewardPolicy | None = None
    tool_execution: ToolExecution = "parallel"


def simple() -> RolloutConfig:
    """No limits: the environment decides."""
    return RolloutConfig()


def agentic() -> RolloutConfig:
    """For tool use: 10 turns, 65536 tokens, 30 tool calls, 2 retries after unreadable actions, cut-off episodes are
    worth at most 0 (ungraded where a whole group timed out), 900 s for the grader, tools one after another."""
    return RolloutConfig(
        limits=RolloutLimits(max_turns=10, max_trajectory_tokens=65_536, max_tool_calls=30),
        parse_errors=ParseErrorPolicy(max_consecutive=2),
        termination=TerminationRewardPolicy(
            zero_reward_on_limit=True, skip_grading_on_timeout=True, grader_timeout_seconds=900
        ),
        tool_execution="sequential",
    )


def default_rollout_config_for_model(model_name: str) -> RolloutConfig:
    """Preset of a model: the one for tool use for models made for it, else the simple one."""
    return agentic() if model_name.startswith(_AGENTIC_MODELS) else simple()


def default_rollout_strategy_for_model(model_name: str) -> RolloutStrategy:
    """Error strategy of a model: tolerant for models made for tool use, else fail at once."""
    return MinViableGroup() if model_name.startswith(_AGENTIC_MODELS) else FailFast()
