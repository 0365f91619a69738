"""Plays one episode within limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import tinker
from tinker_cookbook.completers import StopCondition, TinkerTokenCompleter, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.rollout_presets import RolloutConfig
from tinker_cookbook.rl.types import (
    ActionExtra,
    Env,
    InitialObservationOverflow,
    StepResult,
    StopReason,
    Trajectory,
    Transition,
)
from tinker_cookbook.utils import trace


class SamplingTurnTimeoutError(TimeoutError):
    """One sample took longer than ``sampling_turn_timeout_seconds``."""


@runtime_checkable
class SupportsToolCallLimit(Protocol):
    """An environment that counts tool calls itself."""

    def set_max_tool_calls(self, max_tool_calls: int | None) -> None:
        """Take the limit."""
        ...


@runtime_checkable
class SupportsParseErrorPolicy(Protocol):
    """An environment that handles unreadable actions itself."""

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Take the policy."""
        ...


@dataclass
class RolloutState:
    """Where an episode stands."""

    turn_index: int = 0
    observation_tokens: int = 0
    sampled_tokens: int = 0
    num_length_truncations: int = 0
    elapsed_seconds: float = 0.0
    transitions: list[Transition] = field(default_factory=list)


class RolloutHooks(Protocol):
    """Called while an episode is played. All methods are optional for the caller to use."""

    async def on_turn_begin(self, state: RolloutState) -> None:
        """Before each sample."""
        ...

    async def on_stop_reason(self, state: RolloutState, reason: StopReason) -> None:
        """When the episode has ended."""
        ...


def stop_reason_from_metrics(metrics: Mapping[str, float]) -> StopReason | None:
    """The reason that an environment reported as ``stop/<reason>``."""
    for reason in StopReason:
        if metrics.get(f"stop/{reason.value}"):
            return reason
    return None


@trace.scope
async def policy_sample(
    policy: TokenCompleter, observation: tinker.ModelInput, stop: StopCondition, timeout: float | None
) -> TokensWithLogprobs:
    """One action of the policy within a deadline."""
    try:
        return await asyncio.wait_for(policy(observation, stop), timeout)
    except TimeoutError as error:
        raise SamplingTurnTimeoutError(f"no sample within {timeout} s (sampling_turn_timeout_seconds)") from error


@trace.scope
async def env_step(env: Env, sampled: TokensWithLogprobs) -> StepResult:
    """One step of the environment."""
    return await env.step(sampled.tokens, extra=ActionExtra(stop_reason=sampled.stop_reason))


async def run_rollout(
    policy: TokenCompleter,
    env: Env,
    *,
    limits: RolloutLimits | None = None,
    hooks: RolloutHooks | None = None,
    parse_errors: ParseErrorPolicy | None = None,
    config: RolloutConfig | None = None,
) -> Trajectory:
    """Play an episode to its end or to a limit. The last transition carries the metric ``stop/<reason>``."""
    limits = limits or (config.limits if config else RolloutLimits())
    parse_errors = parse_errors or (config.parse_errors if config else None)
    if limits.max_tool_calls is not None and isinstance(env, SupportsToolCallLimit):
        env.set_max_tool_calls(limits.max_tool_calls)
    if parse_errors is not None and isinstance(env, SupportsParseErrorPolicy):
        env.set_parse_error_policy(parse_errors)
    if limits.max_turn_tokens is not None and isinstance(policy, TinkerTokenCompleter):
        policy = replace(policy, max_tokens=min(policy.max_tokens, limits.max_turn_tokens))
    state = RolloutState()
    final_ob = [tinker.ModelInput.empty()]
    started = time.monotonic()
    try:
        async with asyncio.timeout(limits.rollout_timeout_seconds):
            reason = await _play(policy, env, limits, hooks, state, final_ob, started)
    except SamplingTurnTimeoutError:
        raise
    except TimeoutError:
        if limits.rollout_timeout_seconds is None or not state.transitions:
            raise
        reason = StopReason.ROLLOUT_TIMEOUT
    if state.transitions:
        last = state.transitions[-1]
        last.episode_done = True
        last.metrics = {**last.metrics, f"stop/{reason.value}": 1}
    if hooks is not None:
        await hooks.on_stop_reason(state, reason)
    return Trajectory(transitions=state.transitions, final_ob=final_ob[0], stop_reason=reason)


async def _play(
    policy: TokenCompleter,
    env: Env,
    limits: RolloutLimits,
    hooks: RolloutHooks | None,
    state: RolloutState,
    final_ob: list[tinker.ModelInput],
    started: float,
) -> StopReason:
    first = await env.initial_observation()
    if isinstance(first, InitialObservationOverflow):
        empty = TokensWithLogprobs(tokens=[], maybe_logprobs=[])
        state.transitions.append(
            Transition(tinker.ModelInput.empty(), empty, first.reward, True, first.metrics, first.logs)
        )
        return StopReason.CONTEXT_OVERFLOW
    observation, stop = first
    while True:
        final_ob[0] = observation
        state.observation_tokens = observation.length
        state.elapsed_seconds = time.monotonic() - started
        if hooks is not None:
            await hooks.on_turn_begin(state)
        sampled = await policy_sample(policy, observation, stop, limits.sampling_turn_timeout_seconds)
        state.sampled_tokens += len(sampled.tokens)
        state.num_length_truncations += sampled.stop_reason == "length"
        result = await env_step(env, sampled)
        state.transitions.append(
            Transition(
                ob=observation,
                ac=sampled,
                reward=result.reward,
                episode_done=result.episode_done,
                metrics=dict(result.metrics),
                logs=dict(result.logs),
            )
        )
        state.turn_index += 1
        observation, stop = result.next_observation, result.next_stop_condition
        final_ob[0] = observation
        if result.episode_done:
            return stop_reason_from_metrics(state.transitions[-1].metrics) or StopReason.COMPLETED
        if limits.max_turns is not None and state.turn_index >= limits.max_turns:
            return StopReason.MAX_TURNS
        if limits.max_sampled_tokens is not None and state.sampled_tokens >= limits.max_sampled_tokens:
            return StopReason.MAX_SAMPLED_TOKENS
        if limits.max_trajectory_tokens is not None and observation.length >= limits.max_trajectory_tokens:
            return StopReason.MAX_TOKENS
