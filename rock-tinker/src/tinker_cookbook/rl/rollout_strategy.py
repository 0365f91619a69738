"""What to do when rollouts of a group fail."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_cookbook.completers import TokenCompleter
from tinker_cookbook.exceptions import AllTrajectoriesFailedError, ConfigurationError
from tinker_cookbook.rl.rollout_runner import play_in_group
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RolloutError, Trajectory

logger = logging.getLogger(__name__)


@dataclass
class RolloutResult:
    """Trajectories that succeeded with their environments, and the errors on the way."""

    trajectories: list[Trajectory]
    envs: Sequence[Env]
    errors: list[RolloutError]


class RolloutStrategy(ABC):
    """Makes the environments of a group and plays an episode in each."""

    @property
    def catches_group_errors(self) -> bool:
        """Whether a group that cannot be completed is skipped instead of ending the run."""
        return False

    @abstractmethod
    async def execute(self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter) -> RolloutResult:
        """Play all episodes of a group."""


@dataclass
class FailFast(RolloutStrategy):
    """The first error ends the run (and cancels the other rollouts of the group)."""

    async def execute(self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter) -> RolloutResult:
        envs = await env_group_builder.make_envs()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(play_in_group(env_group_builder, policy, env, index))
                    for index, env in enumerate(envs)
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return RolloutResult([task.result() for task in tasks], envs, [])


@dataclass
class RetryOnFailure(RolloutStrategy):
    """Failed episodes are played again in fresh environments, up to ``max_retries`` times in the whole group.

    ``per_rollout_timeout``: seconds after which an episode counts as failed; 0: never.
    """

    max_retries: int = 3
    per_rollout_timeout: float = 0

    @property
    def catches_group_errors(self) -> bool:
        return True

    async def execute(self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter) -> RolloutResult:
        envs = await env_group_builder.make_envs()
        return await _play(env_group_builder, envs, policy, self.max_retries, self.per_rollout_timeout, len(envs))


@dataclass
class MinViableGroup(RolloutStrategy):
    """A group counts when ``min_successful`` episodes succeed (default: three quarters, rounded up); failed ones are played
    again first, up to ``max_retries`` times in the whole group."""

    min_successful: int | None = None
    max_retries: int = 3
    per_rollout_timeout: float | None = None

    @property
    def catches_group_errors(self) -> bool:
        return True

    async def execute(self, env_group_builder: EnvGroupBuilder, policy: TokenCompleter) -> RolloutResult:
        envs = await env_group_builder.make_envs()
        needed = self.min_successful if self.min_successful is not None else math.ceil(0.75 * len(envs))
        return await _play(env_group_builder, envs, policy, self.max_retries, self.per_rollout_timeout, needed)


async def _play(
    builder: EnvGroupBuilder,
    envs: Sequence[Env],
    policy: TokenCompleter,
    retries: int,
    timeout: float | None,
    needed: int,
) -> RolloutResult:
    errors: list[RolloutError] = []
    slots: dict[int, tuple[Trajectory, Env]] = {}
    left = retries

    async def fill(index: int, env: Env) -> None:
        nonlocal left
        while True:
            try:
                slots[index] = (
                    await asyncio.wait_for(play_in_group(builder, policy, env, index), timeout or None),
                    env,
                )
                return
            except Exception as error:
                logger.warning("rollout %d failed: %s: %s", index, type(error).__name__, error)
                errors.append(RolloutError(type(error).__name__, str(error)))
            if left <= 0:
                return
            left -= 1
            fresh = await builder.make_envs()
            env = fresh[index % len(fresh)]

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fill(index, env)) for index, env in enumerate(envs)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    if any(task.cancelled() for task in tasks):
        raise asyncio.CancelledError  # no failure of a rollout: the run is being ended
    if len(slots) < needed or not slots:
        kinds = ", ".join(sorted({error.error_type for error in errors}))
        last = errors[-1].error_message if errors else "no environments"
        raise AllTrajectoriesFailedError(
            f"{len(slots)} of {len(envs)} rollouts succeeded, {needed} needed ({kinds}): {last}"
        )
    ordered = [slots[index] for index in sorted(slots)]
    return RolloutResult([trajectory for trajectory, _ in ordered], [env for _, env in ordered], errors)


def rollout_strategy_from_config(rollout_error_tolerance: bool | RolloutStrategy) -> RolloutStrategy:
    """False: fail fast. True: retry. A strategy: itself."""
    if isinstance(rollout_error_tolerance, RolloutStrategy):
        return rollout_error_tolerance
    if rollout_error_tolerance is False:
        return FailFast()
    if rollout_error_tolerance is True:
        return RetryOnFailure()
    raise ConfigurationError(f"rollout_error_tolerance={rollout_error_tolerance!r}: give true, false or a strategy")
