"""Environments that speak messages, and the adapter that makes token environments of them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import tinker
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.renderers import Message, ParseFailureKind, Renderer, classify_parse_failure
from tinker_cookbook.rl.rollout_limits import PARSE_FAILURE_DETAIL_MAX_CHARS, ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.types import (
    PARSE_ERROR_MASKED_METRIC_KEY,
    STOP_METRIC_PREFIX,
    Action,
    ActionExtra,
    Env,
    InitialObservationOverflow,
    Logs,
    Metrics,
    Observation,
    StepResult,
    StopReason,
)
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter


@dataclass
class MessageStepResult:
    """What a message led to; ``next_messages`` is the whole conversation."""

    reward: float
    episode_done: bool
    next_messages: list[Message]
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)
    next_stop_condition: StopCondition | None = None


class MessageEnv(ABC):
    """One episode in messages."""

    @abstractmethod
    async def initial_observation(self) -> list[Message]:
        """The conversation to begin with."""

    @abstractmethod
    async def step(self, message: Message) -> MessageStepResult:
        """Take the message of the model."""

    async def observe_truncated_response(self, message: Message) -> list[Message] | None:
        """Told of a response that was cut off for its length. Returns the conversation to go on with; None ends the episode.

        Only asked where ``terminate_on_length`` is off.
        """
        return None

    async def add_messages(self, messages: list[Message]) -> list[Message] | None:
        """Append messages that did not come from the model; returns the conversation.

        Needed only where unreadable actions may be tried again or hooks add messages; None: not supported.
        """
        return None


class EnvFromMessageEnv(Env):
    """Renders the conversation, parses actions, and ends episodes that grow too long.

    Args:
        failed_parse_reward: reward of an action that cannot be read.
        terminate_on_parse_error: whether such an action ends the episode (else the environment sees its text).
        max_trajectory_tokens: longest next prompt; a longer one ends the episode with ``context_overflow_reward``
            as the reward of the turn. ``max_generation_tokens`` of it are kept free for the answer.
        terminate_on_length: whether an answer that was cut off for its length ends the episode, with that reward too.
        parse_error_policy: lets the model try again after an unreadable tool call, where the message environment can;
            a response that does not end by itself gets its ``terminal_reward``.
        rollout_limits: limits that the rollout of this environment observes, unless it is given others.
    """

    def __init__(
        self,
        renderer: Renderer,
        message_env: MessageEnv,
        failed_parse_reward: float = -1.0,
        terminate_on_parse_error: bool = True,
        max_trajectory_tokens: int | None = None,
        max_generation_tokens: int | None = None,
        context_overflow_reward: float = -0.1,
        terminate_on_length: bool = True,
        parse_error_policy: ParseErrorPolicy | None = None,
        rollout_limits: RolloutLimits | None = None,
    ) -> None:
        self.renderer = renderer
        self.message_env = message_env
        self.failed_parse_reward = failed_parse_reward
        self.terminate_on_parse_error = terminate_on_parse_error
        self.max_trajectory_tokens, self.max_generation_tokens = max_trajectory_tokens, max_generation_tokens
        self.context_overflow_reward = context_overflow_reward
        self.terminate_on_length = terminate_on_length
        self.parse_error_policy = parse_error_policy
        self.rollout_limits = rollout_limits
        self._stop: StopCondition = renderer.get_stop_sequences()

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Use another policy for unreadable actions, also those of which only a tool call is unreadable."""
        self.parse_error_policy = policy
        setter = getattr(self.message_env, "set_parse_error_policy", None)
        if setter is not None:
            setter(policy)

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        """Hand the limit to the message environment, if it counts tool calls."""
        setter = getattr(self.message_env, "set_max_tool_calls", None)
        if setter is not None:
            setter(max_tool_calls)

    async def inject_messages(self, messages: list[Message]) -> tuple[Observation, StopCondition]:
        """Append messages from outside; returns the next prompt and its stop condition."""
        return await self._render(await self._added(messages)), self._stop

    async def _added(self, messages: list[Message]) -> list[Message]:
        conversation = await self.message_env.add_messages(messages)
        if conversation is None:
            raise NotImplementedError(f"{type(self.message_env).__name__} does not take added messages (add_messages)")
        return conversation

    async def _render(self, messages: list[Message]) -> Observation:
        # Other episodes go on meanwhile.
        return await asyncio.to_thread(self.renderer.build_generation_prompt, messages)

    def _too_long(self, length: int) -> bool:
        budget = self.max_trajectory_tokens
        return budget is not None and length + (self.max_generation_tokens or 0) > budget

    async def initial_observation(self) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        prompt = await self._render(await self.message_env.initial_observation())
        if not self._too_long(prompt.length):
            return prompt, self._stop
        text = (
            f"the first prompt has {prompt.length} tokens; with max_generation_tokens={self.max_generation_tokens or 0} "
            f"it exceeds max_trajectory_tokens={self.max_trajectory_tokens}"
        )
        return InitialObservationOverflow(
            reward=self.context_overflow_reward,
            metrics=_marked({"max_tokens_reached": 1.0}, StopReason.MAX_TOKENS),
            logs={"initial_observation_overflow": text},
        )

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        if (extra or {}).get("stop_reason") == "length":
            return await self._cut_off(action)
        message, termination = self.renderer.parse_response(action)
        failure = classify_parse_failure(message, termination)
        if failure is not None and failure[0] is ParseFailureKind.STRUCTURAL:
            handled = self._unreadable(failure[1])
            if handled is not None:
                return handled
        result = await self.message_env.step(message)
        logtree.log_formatter(ConversationFormatter([message]))
        return await self._continued(result)

    async def _cut_off(self, action: Action) -> StepResult:
        conversation: list[Message] | None = None
        if not self.terminate_on_length:
            message, _ = self.renderer.parse_response(action)
            conversation = await self.message_env.observe_truncated_response(message)
        if conversation is not None:
            return await self._continued(MessageStepResult(0.0, False, conversation))
        metrics = _marked({"max_tokens_reached": 1.0}, StopReason.MAX_TOKENS)
        return self._ended(self.context_overflow_reward, metrics, {})

    def _unreadable(self, details: str) -> StepResult | None:
        policy = self.parse_error_policy
        if policy is None:
            if not self.terminate_on_parse_error:
                return None
            return self._ended(self.failed_parse_reward, _marked({"parse_error": 1.0}, StopReason.PARSE_ERROR), {})
        # A response that did not end by itself would be the prompt of the next one: there is no second try.
        metrics, logs = parse_error_records(policy, ParseFailureKind.STRUCTURAL, details)
        return self._ended(policy.terminal_reward, _marked(metrics, StopReason.PARSE_ERROR), logs)

    async def _continued(self, result: MessageStepResult) -> StepResult:
        prompt = await self._render(result.next_messages)
        if not result.episode_done and self._too_long(prompt.length):
            metrics = _marked({**result.metrics, "context_overflow": 1.0}, StopReason.CONTEXT_OVERFLOW)
            return self._ended(self.context_overflow_reward, metrics, result.logs)
        stop = result.next_stop_condition if result.next_stop_condition is not None else self._stop
        return StepResult(result.reward, result.episode_done, prompt, stop, result.metrics, result.logs)

    def _ended(self, reward: float, metrics: Metrics, logs: Logs) -> StepResult:
        return StepResult(reward, True, tinker.ModelInput.empty(), self._stop, metrics, logs)


def _marked(metrics: Metrics, reason: StopReason) -> Metrics:
    return {**metrics, f"{STOP_METRIC_PREFIX}{reason}": 1.0}


def parse_error_records(policy: ParseErrorPolicy, kind: ParseFailureKind, details: str) -> tuple[Metrics, Logs]:
    """Metrics and logs of an action that could not be read."""
    metrics: Metrics = {"parse_error": 1.0}
    if policy.mask_error_turns:
        metrics[PARSE_ERROR_MASKED_METRIC_KEY] = 1.0
    return metrics, {
        "parse_failure_kind": str(kind.value),
        "parse_failure_detail": details[:PARSE_FAILURE_DETAIL_MAX_CHARS],
    }
