"""An episode in which the model calls tools until it answers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tinker_cookbook.renderers import Message, Renderer
from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, TerminationRewardPolicy
from tinker_cookbook.rl.rollout_presets import RolloutConfig, default_rollout_config_for_model
from tinker_cookbook.rl.types import Metrics, StopReason
from tinker_cookbook.tool_use.tools import error_tool_result, handle_tool_call
from tinker_cookbook.tool_use.types import Tool, ToolResult

RewardFn: TypeAlias = Callable[[list[Message]], Awaitable[tuple[float, Metrics]] | tuple[float, Metrics]]


@dataclass
class AgentToolMessageEnv(MessageEnv):
    """Runs the tools that the model calls; ends when it answers without a call, a tool stops, or a limit is hit.

    ``reward_fn`` gets the messages after the prompt (or all, if the termination policy says so) when the episode ends.
    """

    tools: Sequence[Tool]
    initial_messages: list[Message]
    reward_fn: RewardFn
    max_turns: int | None = None
    failed_parse_reward: float = -0.1
    terminate_on_parse_error: bool = True
    max_tool_calls: int | None = None
    parse_error_policy: ParseErrorPolicy | None = None
    tool_execution: Literal["sequential", "parallel"] = "parallel"
    termination_policy: TerminationRewardPolicy = field(default_factory=TerminationRewardPolicy)
    history: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._turns = 0
        self._calls = 0
        self._by_name = {item.name: item for item in self.tools}

    async def initial_observation(self) -> list[Message]:
        self.history = list(self.initial_messages)
        return self.history

    def set_max_tool_calls(self, max_tool_calls: int | None) -> None:
        """Limit the number of calls in the episode."""
        self.max_tool_calls = max_tool_calls

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Use another policy for unreadable calls."""
        self.parse_error_policy = policy

    async def observe_truncated_response(self, message: Message) -> None:
        self.history.append(message)

    async def add_messages(self, messages: list[Message]) -> list[Message]:
        self.history.extend(messages)
        return self.history

    async def step(self, message: Message) -> MessageStepResult:
        self.history.append(message)
        self._turns += 1
        calls = message.get("tool_calls") or []
        unparsed = message.get("unparsed_tool_calls") or []
        metrics: Metrics = {"tool_calls": len(calls), "unparsed_tool_calls": len(unparsed)}
        if not calls and not unparsed:
            return await self._end(StopReason.COMPLETED, metrics)
        if self.max_tool_calls is not None and self._calls + len(calls) > self.max_tool_calls:
            return await self._end(StopReason.MAX_TOOL_CALLS, metrics)
        self._calls += len(calls)
        results = await self._run(calls)
        results += [
            error_tool_result(f"unreadable call: {call.error}", error_type="unparsed_call") for call in unparsed
        ]
        for result in results:
            self.history.extend(result.messages)
            for key, value in result.metrics.items():
                metrics[key] = metrics.get(key, 0) + value
        if any(result.should_stop for result in results):
            return await self._end(StopReason.TOOL_STOPPED, metrics)
        if self.max_turns is not None and self._turns >= self.max_turns:
            return await self._end(StopReason.MAX_TURNS, metrics)
        return MessageStepResult(0.0, False, list(self.history), metrics)

    async def _run(self, calls: Sequence[object]) -> list[ToolResult]:
        if self.tool_execution == "sequential":
            return [await handle_tool_call(self._by_name, call) for call in calls]  # type: ignore[arg-type]
        return list(await asyncio.gather(*(handle_tool_call(self._by_name, call) for call in calls)))  # type: ignore[arg-type]

    async def _end(self, reason: StopReason, metrics: Metrics) -> MessageStepResult:
        whole = self.termination_policy.pass_all_messages_to_grader
        messages = self.history if whole else self.history[len(self.initial_messages) :]
        graded = self.reward_fn(list(messages))
        reward, reward_metrics = await graded if inspect.isawaitable(graded) else graded
        if self.termination_policy.zero_reward_on_limit and reason in self.termination_policy.limit_stop_reasons:
            reward = min(reward, 0.0)
        marked: Metrics = {**metrics, **reward_metrics}
        if reason is not StopReason.COMPLETED:
            marked[f"stop/{reason.value}"] = 1
        return MessageStepResult(reward, True, list(self.history), marked)


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
    terminate_on_length: bool = True,
    parse_error_policy: ParseErrorPolicy | None = None,
) -> EnvFromMessageEnv:
    """A token environment in which the model may call tools. Explicit limits win over those of ``rollout_config``.

    ``initial_messages`` should come from ``renderer.create_conversation_prefix_with_tools`` plus the task.
    """
    if rollout_config is None and model_name is not None:
        rollout_config = default_rollout_config_for_model(model_name)
    config = rollout_config or RolloutConfig()
    limits = config.limits
    policy = parse_error_policy
    if policy is None:
        policy = config.parse_errors
    message_env = AgentToolMessageEnv(
        tools=tools,
        initial_messages=initial_messages,
        reward_fn=reward_fn,
        max_turns=max_turns if max_turns is not None else limits.max_turns,
        failed_parse_reward=failed_parse_reward,
        terminate_on_parse_error=terminate_on_parse_error,
        max_tool_calls=max_tool_calls if max_tool_calls is not None else limits.max_tool_calls,
        parse_error_policy=policy,
        tool_execution=config.tool_execution,
        termination_policy=config.termination or TerminationRewardPolicy(),
    )
    budget = max_trajectory_tokens if max_trajectory_tokens is not None else limits.max_trajectory_tokens
    return EnvFromMessageEnv(
        renderer,
        message_env,
        failed_parse_reward=failed_parse_reward,
        terminate_on_parse_error=terminate_on_parse_error,
        max_trajectory_tokens=budget,
        max_generation_tokens=max_generation_tokens,
        context_overflow_reward=context_overflow_reward,
        terminate_on_length=terminate_on_length,
        parse_error_policy=policy,
    )
