"""Plays groups of episodes and computes their group rewards."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import tinker
from tinker_cookbook.completers import TinkerTokenCompleter, TokenCompleter
from tinker_cookbook.exceptions import AllTrajectoriesFailedError, ConfigurationError
from tinker_cookbook.rl.data_processing import has_constant_rewards
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
from tinker_cookbook.rl.rollout_presets import RolloutConfig
from tinker_cookbook.rl.rollout_runner import run_rollout
from tinker_cookbook.rl.rollout_strategy import FailFast, RolloutStrategy
from tinker_cookbook.rl.types import (
    Env,
    EnvGroupBuilder,
    Metrics,
    StopReason,
    Trajectory,
    TrajectoryGroup,
)
from tinker_cookbook.utils import logtree, trace

logger = logging.getLogger(__name__)

_executor: Executor | None = None


def set_rollout_executor(executor: Executor | None) -> None:
    """Run whole groups in an executor (for example a process pool); builders and clients must be picklable.

    Raises:
        ConfigurationError: a pool of forked processes, which would share the connections and threads of this one.
    """
    global _executor
    context = getattr(executor, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":
        raise ConfigurationError(
            "rollouts cannot run in a pool of forked processes; give ProcessPoolExecutor(mp_context="
            'multiprocessing.get_context("spawn"))'
        )
    _executor = executor


def get_rollout_executor() -> Executor | None:
    """The executor of groups, if there is one."""
    return _executor


@dataclass
class RolloutErrorCounter:
    """Counts failed rollouts for the metrics."""

    _counts: Counter[str] = field(default_factory=Counter)
    _groups_skipped: int = 0

    def ingest(self, result: TrajectoryGroup | None) -> None:
        """Add the errors of a group; None is a group that failed as a whole."""
        if result is None:
            self._groups_skipped += 1
            return
        self._counts.update(error.error_type for error in result.rollout_errors)

    def get_metrics(self, prefix: str = "rollout_errors") -> dict[str, float]:
        """``rollout_errors/<type>``, ``/total`` and ``/groups_skipped``; empty without any."""
        metrics = {f"{prefix}/{kind}": float(count) for kind, count in self._counts.items()}
        if self._counts:
            metrics[f"{prefix}/total"] = float(sum(self._counts.values()))
        if self._groups_skipped:
            metrics[f"{prefix}/groups_skipped"] = float(self._groups_skipped)
        return metrics

    def reset(self) -> None:
        """Count from 0 again."""
        self._counts.clear()
        self._groups_skipped = 0


async def do_single_rollout(policy: TokenCompleter, env: Env) -> Trajectory:
    """Play one episode with the limits that the environment brings along (``env.rollout_config``), if any."""
    return await run_rollout(policy, env, config=getattr(env, "rollout_config", None))


@trace.scope
async def do_group_rollout(
    env_group_builder: EnvGroupBuilder,
    policy: TokenCompleter,
    strategy: RolloutStrategy | None = None,
    termination: TerminationRewardPolicy | None = None,
) -> TrajectoryGroup:
    """Play all episodes of a group and grade them.

    Raises:
        AllTrajectoriesFailedError: the strategy could not complete the group.
    """
    config: RolloutConfig | None = getattr(env_group_builder, "rollout_config", None)
    termination = termination or (config.termination if config else None) or TerminationRewardPolicy()
    try:
        result = await (strategy or FailFast()).execute(env_group_builder, policy)
        rewards = await _grade(env_group_builder, result.trajectories, result.envs, termination)
    finally:
        await _uninterrupted(env_group_builder.cleanup())
    finals, metrics_G = [], []
    for trajectory, (reward, metrics) in zip(result.trajectories, rewards, strict=True):
        if termination.zero_reward_on_limit and trajectory.stop_reason in termination.limit_stop_reasons:
            steps = sum(turn.reward for turn in trajectory.transitions)
            if steps + reward > 0:
                reward, metrics = -steps, {**metrics, "zero_reward_on_limit": 1.0}
        finals.append(reward)
        metrics_G.append(metrics)
    return TrajectoryGroup(
        trajectories_G=result.trajectories,
        final_rewards_G=finals,
        metrics_G=metrics_G,
        rollout_errors=result.errors,
    )


async def _uninterrupted(cleanup: Coroutine[Any, Any, None]) -> None:
    """Finish a clean-up even if this task is cancelled meanwhile; the cancellation is passed on afterwards."""
    task = asyncio.create_task(cleanup)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                break
            cancelled = error
        except Exception:
            break  # raised below
    if cancelled is not None:
        raise cancelled
    await task


async def _grade(
    builder: EnvGroupBuilder, trajectories: list[Trajectory], envs: Sequence[Env], termination: TerminationRewardPolicy
) -> list[tuple[float, Metrics]]:
    timed_out = StopReason.ROLLOUT_TIMEOUT
    skips = termination.skip_grading_on_timeout and termination.zero_reward_on_limit
    if skips and timed_out in termination.limit_stop_reasons and all(t.stop_reason == timed_out for t in trajectories):
        return [(0.0, {}) for _ in trajectories]
    async with trace.scope_span("compute_group_rewards"):
        return await asyncio.wait_for(
            builder.compute_group_rewards(trajectories, envs), termination.grader_timeout_seconds
        )


async def do_group_rollout_and_filter_constant_reward(
    sampling_client: tinker.SamplingClient,
    env_group_builder: EnvGroupBuilder,
    max_tokens: int,
    temperature: float,
    do_remove_constant_reward_groups: bool,
    enable_logging: bool = True,
    strategy: RolloutStrategy | None = None,
    termination: TerminationRewardPolicy | None = None,
) -> TrajectoryGroup | None:
    """Sample a group; None if it failed (and the strategy allows that) or, if asked to, has constant rewards."""
    strategy = strategy or FailFast()
    policy = TinkerTokenCompleter(sampling_client, max_tokens=max_tokens, temperature=temperature)
    with logtree.optional_enable_logging(enable_logging):
        try:
            if _executor is not None:
                loop = asyncio.get_running_loop()
                group = await loop.run_in_executor(
                    _executor, _run_in_worker, env_group_builder, policy, strategy, termination
                )
            else:
                group = await do_group_rollout(env_group_builder, policy, strategy, termination)
        except AllTrajectoriesFailedError as error:
            if not strategy.catches_group_errors:
                raise
            logger.warning("group skipped: %s", error)
            return None
    if do_remove_constant_reward_groups and has_constant_rewards(group):
        return None
    return group


def _run_in_worker(
    builder: EnvGroupBuilder, policy: Any, strategy: RolloutStrategy, termination: TerminationRewardPolicy | None
) -> TrajectoryGroup:
    return asyncio.run(do_group_rollout(builder, policy, strategy, termination))
