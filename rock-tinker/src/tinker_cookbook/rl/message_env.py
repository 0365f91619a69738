"""Environments that speak messages, and the adapter that makes token environments of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import tinker
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.renderers import Message, Renderer, classify_parse_failure
from tinker_cookbook.rl.data_processing import MASKED_TURN
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy
from tinker_cookbook.rl.types import (
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

    async def observe_truncated_response(self, message: Message) -> None:
        """Told of a response that was cut off and ends the episode."""
        return None

    async def add_messages(self, messages: list[Message]) -> list[Message]:
        """Append messages that did not come from the model; returns the conversation.

        Needed only where unreadable actions may be tried again.
        """
        raise NotImplementedError(f"{type(self).__name__} does not take added messages")


class EnvFromMessageEnv(Env):
    """Renders the conversation, parses actions, and ends episodes that grow too long.

    Args:
        failed_parse_reward: reward of an action that cannot be read.
        terminate_on_parse_error: whether such an action ends the episode (else the environment sees its text).
        max_trajectory_tokens: longest next prompt; a longer one ends the episode with ``context_overflow_reward``
            added. ``max_generation_tokens`` of it are kept free for the answer.
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
    ) -> None:
        self.renderer = renderer
        self.message_env = message_env
        self.failed_parse_reward = failed_parse_reward
        self.terminate_on_parse_error = terminate_on_parse_error
        self.context_overflow_reward = context_overflow_reward
        self.terminate_on_length = terminate_on_length
        self.parse_error_policy = parse_error_policy
        self._budget = None if max_trajectory_tokens is None else max_trajectory_tokens - (max_generation_tokens or 0)
        self._errors_in_a_row = 0
        self._stop: StopCondition = renderer.get_stop_sequences()

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Use another policy for unreadable actions."""
        self.parse_error_policy = policy

    def set_max_tool_calls(self, max_tool_calls: int | None) -> None:
        """Hand the limit to the message environment, if it counts tool calls."""
        setter = getattr(self.message_env, "set_max_tool_calls", None)
        if setter is not None:
            setter(max_tool_calls)

    async def inject_messages(self, messages: list[Message]) -> Observation:
        """Append messages from outside; returns the next prompt."""
        return self.renderer.build_generation_prompt(await self.message_env.add_messages(messages))

    async def initial_observation(self) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        prompt = self.renderer.build_generation_prompt(await self.message_env.initial_observation())
        if self._budget is not None and prompt.length > self._budget:
            return InitialObservationOverflow(
                reward=self.context_overflow_reward, metrics={f"stop/{StopReason.CONTEXT_OVERFLOW.value}": 1}
            )
        return prompt, self._stop

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        message, termination = self.renderer.parse_response(action)
        failure = classify_parse_failure(message, termination)
        cut_off = (extra or {}).get("stop_reason") == "length"
        if failure is not None:
            if cut_off and self.terminate_on_length:
                await self.message_env.observe_truncated_response(message)
                return self._ended(self.failed_parse_reward, StopReason.MAX_TOKENS, {"parse_error": 1})
            handled = await self._unreadable(message, failure[1])
            if handled is not None:
                return handled
        self._errors_in_a_row = 0
        result = await self.message_env.step(message)
        logtree.log_formatter(ConversationFormatter([message]))
        if result.episode_done:
            ended = self._ended(result.reward, None, result.metrics)
            ended.logs = result.logs
            return ended
        return self._continued(result)

    async def _unreadable(self, message: Message, error: str) -> StepResult | None:
        policy = self.parse_error_policy
        if policy is not None:
            self._errors_in_a_row += 1
            metrics: Metrics = {"parse_error": 1, **({MASKED_TURN: 1} if policy.mask_error_turns else {})}
            if self._errors_in_a_row > policy.max_consecutive:
                return self._ended(policy.terminal_reward, StopReason.PARSE_ERROR, metrics)
            note = Message(role="user", content=policy.retry_message_template.format(error=error, details=error))
            messages = await self.message_env.add_messages([message, note])
            return self._continued(MessageStepResult(-policy.penalty_per_error, False, messages, metrics))
        if self.terminate_on_parse_error:
            return self._ended(self.failed_parse_reward, StopReason.PARSE_ERROR, {"parse_error": 1})
        return None

    def _continued(self, result: MessageStepResult) -> StepResult:
        prompt = self.renderer.build_generation_prompt(result.next_messages)
        if self._budget is not None and prompt.length > self._budget:
            reward = result.reward + self.context_overflow_reward
            return self._ended(reward, StopReason.CONTEXT_OVERFLOW, result.metrics)
        stop = result.next_stop_condition if result.next_stop_condition is not None else self._stop
        return StepResult(result.reward, False, prompt, stop, result.metrics, result.logs)

    def _ended(self, reward: float, reason: StopReason | None, metrics: Metrics) -> StepResult:
        marked = {**metrics, **({f"stop/{reason.value}": 1} if reason is not None else {})}
        return StepResult(reward, True, tinker.ModelInput.empty(), self._stop, marked)
