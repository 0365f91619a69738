"""Plays one episode within limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs, seed_scope, seeded
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    InitialObservationOverflow,
    Metrics,
    Observation,
    StepResult,
    StopReason,
    Trajectory,
    Transition,
)
from tinker_cookbook.utils import trace

if TYPE_CHECKING:
    from tinker_cookbook.rl.rollout_presets import RolloutConfig

logger = logging.getLogger(__name__)

TRUNCATION_METRIC_KEY = "num_truncations_max_turn_tokens"
"""Metric of the last turn: how many turns before the end were cut off for their length."""

__all__ = [
    "STOP_METRIC_PREFIX",
    "TRUNCATION_METRIC_KEY",
    "Metrics",
    "RolloutHooks",
    "RolloutState",
    "SamplingTurnTimeoutError",
    "StopCondition",
    "SupportsMessageInjection",
    "SupportsParseErrorPolicy",
    "SupportsToolCallLimit",
    "env_step",
    "play_in_group",
    "policy_sample",
    "run_rollout",
    "stop_reason_from_metrics",
]


class SamplingTurnTimeoutError(Exception):
    """One sample took longer than ``sampling_turn_timeout_seconds``."""


@runtime_checkable
class SupportsToolCallLimit(Protocol):
    """An environment that counts tool calls itself."""

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        """Take the limit."""
        ...


@runtime_checkable
class SupportsMessageInjection(Protocol):
    """An environment whose conversation takes messages from outside."""

    async def inject_messages(self, messages: list[Message]) -> tuple[Observation, StopCondition]:
        """Append the messages; returns the next prompt and its stop condition."""
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

    turn_index: int
    observation_tokens: int
    sampled_tokens: int
    num_length_truncations: int
    elapsed_seconds: float
    transitions: list[Transition]


class RolloutHooks(Protocol):
    """Called while an episode is played."""

    async def on_turn_begin(self, state: RolloutState) -> list[Message] | None:
        """Before each turn. Messages that are returned are appended to the conversation first."""
        return None

    async def on_stop_reason(self, reason: str, state: RolloutState) -> str | None:
        """When the episode is about to end for a reason that has a name. Returns the reason to end with; None goes on.

        Not called when time runs out within a turn, nor where the first prompt is too long.
        """
        return reason

    async def on_grade(self, state: RolloutState) -> None:
        """When the environment has ended the episode itself, and has so graded it."""
        return None

    async def on_artifacts(self, state: RolloutState) -> None:
        """At the end of every episode."""
        return None


def stop_reason_from_metrics(metrics: Mapping[str, float]) -> str | None:
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

    Limits are those given, else those of ``config``, else those that the environment brings along (``env.rollout_limits``).
    The trajectory's stop reason is None where the environment ended the episode without giving one; else the last transition
    carries the metric ``stop/<reason>``. Token limits also cap each answer. A first observation that leaves no room ends the
    episode with one empty turn.
    """
    parse_errors = parse_errors or (config.parse_errors if config else None)
    given = limits or (config.limits if config else None)
    if given is not None and given.max_tool_calls is not None:
        if isinstance(env, SupportsToolCallLimit):
            env.set_max_tool_calls(given.max_tool_calls)
        else:
            logger.warning("max_tool_calls has no effect: %s counts no tool calls", type(env).__name__)
    limits = given or getattr(env, "rollout_limits", None) or RolloutLimits()
    if parse_errors is not None:
        if isinstance(env, SupportsParseErrorPolicy):
            env.set_parse_error_policy(parse_errors)
        else:
            logger.warning("parse_errors has no effect: %s has no set_parse_error_policy", type(env).__name__)
    return await _Episode(policy, env, limits, hooks).play()


async def play_in_group(builder: EnvGroupBuilder, policy: TokenCompleter, env: Env, index: int) -> Trajectory:
    """Play the episode with this number in its group, within the limits that its environment, else its builder, brings along."""
    config: RolloutConfig | None = getattr(env, "rollout_config", None) or getattr(builder, "rollout_config", None)
    # Each episode is a task of its own, so the scope does not leak into its siblings.
    with seed_scope(index) if seeded() else contextlib.nullcontext():
        return await run_rollout(policy, env, config=config)


class _Episode:
    """State of an episode that is being played."""

    def __init__(self, policy: TokenCompleter, env: Env, limits: RolloutLimits, hooks: RolloutHooks | None) -> None:
        self.policy, self.env, self.limits, self.hooks = policy, env, limits, hooks
        self.state = RolloutState(0, 0, 0, 0, 0.0, [])
        self.final_ob = tinker.ModelInput.empty()
        self.ended_by_env = False
        self.started = time.monotonic()

    async def play(self) -> Trajectory:
        """Play to the end."""
        try:
            async with asyncio.timeout(self.limits.rollout_timeout_seconds) as self._deadline:
                reason = await self._turns()
        except TimeoutError:
            if self.limits.rollout_timeout_seconds is None:
                raise
            reason = StopReason.ROLLOUT_TIMEOUT
        turns = self.state.transitions
        if not turns:
            empty = TokensWithLogprobs(tokens=[], maybe_logprobs=[])
            turns.append(Transition(tinker.ModelInput.empty(), empty, 0.0, True))
        last = turns[-1]
        last.episode_done = True
        if reason is not None:
            last.metrics = {**last.metrics, f"{STOP_METRIC_PREFIX}{reason}": 1.0}
        if self.state.num_length_truncations:
            last.metrics = {**last.metrics, TRUNCATION_METRIC_KEY: float(self.state.num_length_truncations)}
        if self.hooks is not None:
            if self.ended_by_env:
                await self.hooks.on_grade(self.state)
            await self.hooks.on_artifacts(self.state)
        return Trajectory(transitions=turns, final_ob=self.final_ob, stop_reason=reason)

    async def _turns(self) -> str | None:
        first = await self.env.initial_observation()
        if isinstance(first, InitialObservationOverflow):
            empty = TokensWithLogprobs(tokens=[], maybe_logprobs=[])
            self.state.transitions.append(
                Transition(tinker.ModelInput.empty(), empty, first.reward, True, first.metrics, first.logs)
            )
            return stop_reason_from_metrics(first.metrics)
        observation, stop = first
        while True:
            observation, stop = await self._begin_turn(observation, stop)
            room, limit = _room(self.limits, self.state)
            if limit is not None and room is not None and room <= 1:
                reason = await self._confirmed(limit)
                if reason is not None:
                    return reason
                room = None
            observation, stop, done = await self._turn(observation, stop, room)
            reason = self._reason(done)
            confirmed = await self._confirmed(reason) if reason is not None else None
            self.ended_by_env = done and (reason is None or confirmed is not None)
            if done and reason is not None and confirmed != reason:
                self._withdraw(reason)
            if confirmed is not None or self.ended_by_env:
                return confirmed

    def _reason(self, done: bool) -> str | None:
        limits = self.limits
        if done:
            return stop_reason_from_metrics(self.state.transitions[-1].metrics)
        if limits.max_turns is not None and self.state.turn_index >= limits.max_turns:
            return StopReason.MAX_TURNS
        timeout = limits.rollout_timeout_seconds
        if timeout is not None and time.monotonic() - self.started >= timeout:
            self._deadline.reschedule(None)  # a hook may let the episode go on
            return StopReason.ROLLOUT_TIMEOUT
        return None

    def _withdraw(self, reason: str) -> None:
        """A hook has overruled the ending that the environment reported."""
        last = self.state.transitions[-1]
        last.episode_done = False
        last.metrics = {key: value for key, value in last.metrics.items() if key != f"{STOP_METRIC_PREFIX}{reason}"}

    async def _begin_turn(self, observation: Observation, stop: StopCondition) -> tuple[Observation, StopCondition]:
        state = self.state
        self.final_ob, state.observation_tokens = observation, observation.length
        state.elapsed_seconds = time.monotonic() - self.started
        messages = await self.hooks.on_turn_begin(state) if self.hooks is not None else None
        if not messages:
            return observation, stop
        if not isinstance(self.env, SupportsMessageInjection):
            raise TypeError(f"{type(self.env).__name__} takes no messages from hooks: it has no inject_messages")
        observation, stop = await self.env.inject_messages(messages)
        self.final_ob, state.observation_tokens = observation, observation.length
        return observation, stop

    async def _turn(
        self, observation: Observation, stop: StopCondition, room: int | None
    ) -> tuple[Observation, StopCondition, bool]:
        state = self.state
        timeout = self.limits.sampling_turn_timeout_seconds
        sampled = await policy_sample(self.policy, observation, stop, timeout, room)
        state.sampled_tokens += len(sampled.tokens)
        result = await env_step(self.env, sampled)
        state.num_length_truncations += sampled.stop_reason == "length" and not result.episode_done
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
        self.final_ob = result.next_observation
        return result.next_observation, result.next_stop_condition, result.episode_done

    async def _confirmed(self, reason: str) -> str | None:
        return reason if self.hooks is None else await self.hooks.on_stop_reason(reason, self.state)


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
