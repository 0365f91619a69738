"""Limits of an episode, as values: how long, what to do with unreadable actions, what a cut-off episode is worth."""

from __future__ import annotations

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.types import StopReason

DEFAULT_LIMIT_STOP_REASONS = (
    StopReason.MAX_TOKENS,
    StopReason.MAX_SAMPLED_TOKENS,
    StopReason.MAX_TURNS,
    StopReason.MAX_TOOL_CALLS,
    StopReason.ROLLOUT_TIMEOUT,
)
PARSE_FAILURE_DETAIL_MAX_CHARS = 16384
"""How much of an error is shown to the model and logged."""
DEFAULT_RETRY_MESSAGE_TEMPLATE = "Your last message could not be read: {details}. Answer again in the right format."


@chz.chz
class RolloutLimits:
    """Bounds of one episode; None: no bound. Tokens of a trajectory are those of its last observation and action."""

    max_turns: int | None = None
    max_trajectory_tokens: int | None = None
    max_sampled_tokens: int | None = None
    max_tool_calls: int | None = None
    max_turn_tokens: int | None = None
    rollout_timeout_seconds: float | None = None
    sampling_turn_timeout_seconds: float | None = None

    @chz.validate
    def _check(self) -> None:
        for name, value in chz.asdict(self).items():
            if value is not None and value <= 0:
                raise ConfigurationError(f"{name}={value} must be greater than 0; None switches the limit off")


@chz.chz
class ParseErrorPolicy:
    """What happens with an action that cannot be read.

    Up to ``max_consecutive`` in a row the model is told (``retry_message_template``, where ``{details}`` says what was
    wrong) and may try again, each costing ``penalty_per_error``; one more ends the episode with ``terminal_reward``.
    ``mask_error_turns``: such turns are not trained.
    """

    max_consecutive: int = 0
    retry_message_template: str = DEFAULT_RETRY_MESSAGE_TEMPLATE
    penalty_per_error: float = 0.0
    terminal_reward: float = 0.0
    mask_error_turns: bool = False

    @chz.validate
    def _check(self) -> None:
        if self.max_consecutive < 0 or self.penalty_per_error < 0:
            raise ConfigurationError("max_consecutive and penalty_per_error must not be negative")
        if "{details}" not in self.retry_message_template:
            raise ConfigurationError(f"retry_message_template={self.retry_message_template!r} must contain {{details}}")

    def retry_message(self, details: str) -> str:
        """What the model is told. Other braces of the template stay as they are."""
        return self.retry_message_template.replace("{details}", details[:PARSE_FAILURE_DETAIL_MAX_CHARS])


@chz.chz
class TerminationRewardPolicy:
    """What the reward of an episode that hit a limit is.

    ``zero_reward_on_limit``: its total is at most 0. ``limit_stop_reasons``: which endings count as limits.
    ``skip_grading_on_timeout``: a group of which every episode timed out is not graded; its group rewards are 0. Needs
    ``zero_reward_on_limit`` and the timeout among the limits. ``grader_timeout_seconds``: deadline of
    the group reward. ``pass_all_messages_to_grader``: message environments hand the grader all messages, not only
    those after the prompt.
    """

    zero_reward_on_limit: bool = False
    limit_stop_reasons: tuple[StopReason, ...] = DEFAULT_LIMIT_STOP_REASONS
    skip_grading_on_timeout: bool = False
    grader_timeout_seconds: float | None = None
    pass_all_messages_to_grader: bool = False

    @chz.validate
    def _check(self) -> None:
        if self.grader_timeout_seconds is not None and self.grader_timeout_seconds <= 0:
            raise ConfigurationError(f"grader_timeout_seconds={self.grader_timeout_seconds} must be greater than 0")
