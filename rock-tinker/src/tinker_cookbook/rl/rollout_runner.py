"""Plays one episode within limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.rollout_presets import RolloutConfig
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
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

    async def on_stop_reason(self, reason: StopReason, state: RolloutState) -> None:
        """When the episode has ended for a reason that has a name."""
        ...


def stop_reason_from_metrics(metrics: Mapping[str, float]) -> StopReason | None:
    """The reason that an environment reported as ``stop/<reason>``."""
    for reason in StopReason:
        if metrics.get(f"stop/{reason.value}"):
            return reason
    return None


@trace.scope
async def policy_sample(
    policy: TokenCompleter,
    observation: tinker.ModelInput,
    stop: StopCondition,
    timeout: float | None,
    max_tokens: int | None = None,
) -> TokensWithLogprobs:
    """One action of the policy within a deadline; a policy is only asked for a cap where there is one."""
    cap = {} if max_tokens is None else {"max_tokens": max_tokens}
    try:
        return await asyncio.wait_for(policy(observation, stop, **cap), timeout)
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
    """Play an episode to its end or to a limit.

    The trajectory's stop reason is None where the environment ended the episode without giving one; else the last transition
    carries the metric ``stop/<reason>``. Token limits also cap each answer. A first observation that leaves no room ends the
    episode with one empty turn.
    """
    limits = limits or (config.limits if config else RolloutLimits())
    parse_errors = parse_errors or (config.parse_errors if config else None)
    if limits.max_tool_calls is not None and isinstance(env, SupportsToolCallLimit):
        env.set_max_tool_calls(limits.max_tool_calls)
    if parse_errors is not None and isinstance(env, SupportsParseErrorPolicy):
        env.set_parse_error_policy(parse_errors)
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
        if reason is not None:
            last.metrics = {**last.metrics, f"{STOP_METRIC_PREFIX}{reason.value}": 1.0}
    if hooks is not None and reason is not None:
        await hooks.on_stop_reason(reason, state)
    return Trajectory(transitions=state.transitions, final_ob=final_ob[0], stop_reason=reason)


async def _play(
    policy: TokenCompleter,
    env: Env,
    limits: RolloutLimits,
    hooks: RolloutHooks | None,
    state: RolloutState,
    final_ob: list[tinker.ModelInput],
    started: float,
) -> StopReason | None:
    first = await env.initial_observation()
    if isinstance(first, InitialObservationOverflow):
        empty = TokensWithLogprobs(tokens=[], maybe_logprobs=[])
        state.transitions.append(
            Transition(tinker.ModelInput.empty(), empty, first.reward, True, first.metrics, first.logs)
        )
        return stop_reason_from_metrics(first.metrics)
    observation, stop = first
    while True:
        final_ob[0] = observation
        state.observation_tokens = observation.length
        state.elapsed_seconds = time.monotonic() - started
        room, limit = _room(limits, state)
        if limit is not None and room is not None and room <= 1:
            if not state.transitions:
                empty = TokensWithLogprobs(tokens=[], maybe_logprobs=[])
                state.transitions.append(Transition(tinker.ModelInput.empty(), empty, 0.0, True))
            return limit
        if hooks is not None:
            await hooks.on_turn_begin(state)
        sampled = await policy_sample(policy, observation, stop, limits.sampling_turn_timeout_seconds, room)
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
            return stop_reason_from_metrics(state.transitions[-1].metrics)
        if limits.max_turns is not None and state.turn_index >= limits.max_turns:
            return StopReason.MAX_TURNS


def _room(limits: RolloutLimits, state: RolloutState) -> tuple[int | None, StopReason | None]:
    """How long the next answer may be (None: no limit), and the bound of the whole episode that comes first, if there is one."""
    left: list[tuple[int, StopReason]] = []
    if limits.max_sampled_tokens is not None:
        left.append((limits.max_sampled_tokens - state.sampled_tokens, StopReason.MAX_SAMPLED_TOKENS))
    if limits.max_trajectory_tokens is not None:
        left.append((limits.max_trajectory_tokens - state.observation_tokens, StopReason.MAX_TOKENS))
    turn = limits.max_turn_tokens
    if not left:
        return turn, None
    room, reason = min(left, key=lambda item: item[0])
    return (room, reason) if turn is None or room <= 1 else (min(room, max(turn, 2)), reason)
