"""An episode in which the model calls tools until it answers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message, ParseFailureKind, Renderer, ToolCall, format_content_as_string
from tinker_cookbook.rl.message_env import (
    EnvFromMessageEnv,
    MessageEnv,
    MessageStepResult,
    parse_error_records,
)
from tinker_cookbook.rl.rollout_limits import (
    PARSE_FAILURE_DETAIL_MAX_CHARS,
    ParseErrorPolicy,
    TerminationRewardPolicy,
)
from tinker_cookbook.rl.rollout_presets import RolloutConfig, ToolExecution, default_rollout_config_for_model
from tinker_cookbook.rl.types import Logs, Metrics, StopReason
from tinker_cookbook.tool_use.tools import error_tool_result, handle_tool_call
from tinker_cookbook.tool_use.types import Tool, ToolResult

__all__ = [
    "PARSE_FAILURE_DETAIL_MAX_CHARS",
    "AgentToolMessageEnv",
    "RewardFn",
    "RewardResult",
    "ToolExecution",
    "build_agent_tool_env",
]

RewardResult: TypeAlias = tuple[float, Metrics]
RewardFn: TypeAlias = Callable[[list[Message]], Awaitable[RewardResult] | RewardResult]
DEFAULT_MAX_TURNS = 5


@dataclass
class AgentToolMessageEnv(MessageEnv):
    """Runs the tools that the model calls; ends when it answers without a call, a tool stops, or a limit is hit.

    ``reward_fn`` gets the conversation when the episode ends; with a termination policy only the messages after the prompt,
    unless the policy says otherwise. A message of which nothing but unreadable calls came out is not graded.
    """

    tools: Sequence[Tool]
    initial_messages: list[Message]
    max_turns: int
    reward_fn: RewardFn
    failed_parse_reward: float = -0.1
    terminate_on_parse_error: bool = True
    max_tool_calls: int | None = None
    parse_error_policy: ParseErrorPolicy | None = None
    tool_execution: ToolExecution = "parallel"
    termination_policy: TerminationRewardPolicy | None = None
    history: list[Message] = field(default_factory=list)
    _turn_count: int = 0

    def __post_init__(self) -> None:
        if self.tool_execution == "concurrent_safe":
            raise NotImplementedError("tool_execution='concurrent_safe': tools do not say whether they may run at once")
        self._calls = self._errors_in_a_row = 0
        self._by_name = {item.name: item for item in self.tools}
        if len(self._by_name) < len(self.tools):
            raise ConfigurationError(f"two tools have the same name: {sorted(item.name for item in self.tools)}")

    async def initial_observation(self) -> list[Message]:
        self.history = list(self.initial_messages)
        return self.history

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        """Limit the number of calls in the episode; a tighter limit that is there already stays."""
        known = self.max_tool_calls
        self.max_tool_calls = max_tool_calls if known is None else min(known, max_tool_calls)

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Use another policy for unreadable calls."""
        self.parse_error_policy = policy

    async def observe_truncated_response(self, message: Message) -> list[Message]:
        self.history.append(message)
        return self.history

    async def add_messages(self, messages: list[Message]) -> list[Message]:
        self.history.extend(messages)
        return self.history

    async def step(self, message: Message) -> MessageStepResult:
        self.history.append(message)
        self._turn_count += 1
        calls = list(message.get("tool_calls") or [])
        unparsed = message.get("unparsed_tool_calls") or []
        if unparsed and not calls:
            return await self._unreadable("\n".join(call.error for call in unparsed))
        self._errors_in_a_row = 0
        metrics: Metrics = {"tool_calls": len(calls), "unparsed_tool_calls": len(unparsed)}
        logs: Logs = {}
        if text := _shown(message):
            logs["assistant_content"] = text
        if not calls:
            return await self._end(StopReason.COMPLETED, metrics, logs)
        dropped = 0
        if self.max_tool_calls is not None:
            dropped = max(len(calls) - max(self.max_tool_calls - self._calls, 0), 0)
            calls = calls[: len(calls) - dropped]
            if dropped:
                logs["tool_calls_dropped"] = f"{dropped} tool calls over max_tool_calls={self.max_tool_calls}"
        self._calls += len(calls)
        results = await self._run(calls)
        for index, (call, result) in enumerate(zip(calls, results, strict=True)):
            logs[f"tool_call_{index}"] = f"{call.function.name}({call.function.arguments})"
            logs[f"tool_result_{index}"] = "\n".join(_shown(answer) for answer in result.messages)
            self.history.extend(result.messages)
            for key, value in result.metrics.items():
                metrics[key] = metrics.get(key, 0) + value
        if unparsed:
            errors = "\n".join(call.error for call in unparsed)
            metrics["parse_error"] = 1.0
            logs["parse_errors"] = errors
            self.history.extend(error_tool_result(errors, error_type="unparsed_call").messages)
        reason = self._reason(dropped, results)
        if reason is not None:
            return await self._end(reason, {**metrics, reason.value: 1.0}, logs)
        return MessageStepResult(0.0, False, self.history, metrics, logs)

    def _reason(self, dropped: int, results: Sequence[ToolResult]) -> StopReason | None:
        if any(result.should_stop for result in results):
            return StopReason.TOOL_STOPPED
        if dropped:
            return StopReason.MAX_TOOL_CALLS
        return StopReason.MAX_TURNS if self._turn_count >= self.max_turns else None

    async def _unreadable(self, details: str) -> MessageStepResult:
        """The step after a message that cannot be read. On the last turn there is no second try: the error ends the episode."""
        policy, last = self.parse_error_policy, self._turn_count >= self.max_turns
        ends = MessageStepResult(self.failed_parse_reward, True, self.history, {"parse_error": 1.0}, {})
        ends.logs["parse_errors"] = details
        if policy is None:
            ends.episode_done = self.terminate_on_parse_error or last
        else:
            self._errors_in_a_row += 1
            metrics, logs = parse_error_records(policy, ParseFailureKind.CONTENT, details)
            ends.metrics.update(metrics)
            ends.logs.update(logs)
            ends.episode_done = self._errors_in_a_row > policy.max_consecutive or last
            ends.reward = policy.terminal_reward if ends.episode_done else -policy.penalty_per_error
        if last:
            ends.metrics["max_turns"] = 1.0
        if ends.episode_done:
            ends.metrics["stop/parse_error"] = 1.0
        else:
            note = (policy or ParseErrorPolicy()).retry_message(details)
            self.history.append(Message(role="user", content=note))
        return ends

    async def _run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        if self.tool_execution == "sequential":
            return [await handle_tool_call(self._by_name, call) for call in calls]
        return list(await asyncio.gather(*(handle_tool_call(self._by_name, call) for call in calls)))

    async def _end(self, reason: StopReason, metrics: Metrics, logs: Logs) -> MessageStepResult:
        reward, reward_metrics = await self._grade()
        policy = self.termination_policy
        if policy is not None and policy.zero_reward_on_limit and reason in policy.limit_stop_reasons:
            reward = min(reward, 0.0)
        marked: Metrics = {**metrics, f"stop/{reason.value}": 1.0, **reward_metrics}
        return MessageStepResult(reward, True, self.history, marked, logs)

    async def _grade(self) -> RewardResult:
        policy = self.termination_policy
        whole = policy is None or policy.pass_all_messages_to_grader
        graded = self.reward_fn(list(self.history if whole else self.history[len(self.initial_messages) :]))
        if not inspect.isawaitable(graded):
            return graded
        return await asyncio.wait_for(_awaited(graded), policy.grader_timeout_seconds if policy is not None else None)


def _shown(message: Message) -> str:
    return format_content_as_string(message["content"], separator="\n").strip()


async def _awaited(graded: Awaitable[RewardResult]) -> RewardResult:
    return await graded


def build_agent_tool_env(
    renderer: Renderer,
    tools: Sequence[Tool],
    initial_messages: list[Message],
    reward_fn: RewardFn,
    *,
    rollout_config: RolloutConfig | None = None,
    model_name: str | None = None,
    max_turns: int | None = None,
    failed_parse_reward: float = -0.1,
    terminate_on_parse_error: bool = True,
    max_tool_calls: int | None = None,
    max_trajectory_tokens: int | None = None,
    max_generation_tokens: int | None = None,
    context_overflow_reward: float = -0.1,
    terminate_on_length: bool | None = None,
    parse_error_policy: ParseErrorPolicy | None = None,
) -> EnvFromMessageEnv:
    """A token environment in which the model may call tools. Explicit limits win over those of ``rollout_config``, else of
    the model's preset; without any, an episode has five turns.

    ``initial_messages`` should come from ``renderer.create_conversation_prefix_with_tools`` plus the task.
    ``terminate_on_length`` None: an answer that was cut off ends the episode unless the limits bound tokens.
    """
    if rollout_config is None and model_name is not None:
        rollout_config = default_rollout_config_for_model(model_name)
    config = rollout_config or RolloutConfig()
    limits = config.limits
    policy = parse_error_policy if parse_error_policy is not None else config.parse_errors
    turns = max_turns if max_turns is not None else limits.max_turns
    message_env = AgentToolMessageEnv(
        tools=tools,
        initial_messages=initial_messages,
        max_turns=turns if turns is not None else DEFAULT_MAX_TURNS,
        reward_fn=reward_fn,
        failed_parse_reward=failed_parse_reward,
        terminate_on_parse_error=terminate_on_parse_error,
        max_tool_calls=max_tool_calls if max_tool_calls is not None else limits.max_tool_calls,
        parse_error_policy=policy,
        tool_execution=config.tool_execution,
        termination_policy=config.termination,
    )
    if terminate_on_length is None:
        bounds = (limits.max_turn_tokens, limits.max_trajectory_tokens, limits.max_sampled_tokens)
        terminate_on_length = all(bound is None for bound in bounds)
    return EnvFromMessageEnv(
        renderer,
        message_env,
        failed_parse_reward=failed_parse_reward,
        terminate_on_parse_error=terminate_on_parse_error,
        max_trajectory_tokens=max_trajectory_tokens,
        max_generation_tokens=max_generation_tokens,
        context_overflow_reward=context_overflow_reward,
        terminate_on_length=terminate_on_length,
        parse_error_policy=policy,
        rollout_limits=limits if rollout_config is not None else None,
    )
