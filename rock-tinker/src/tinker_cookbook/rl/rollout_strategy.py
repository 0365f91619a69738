"""What to do when rollouts of a group fail."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tinker_cookbook.exceptions import AllTrajectoriesFailedError, ConfigurationError
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RolloutError, Trajectory

logger = logging.getLogger(__name__)

RunOne: TypeAlias = Callable[[Env, int], Awaitable[Trajectory]]


@dataclass
class RolloutResult:
    """Trajectories that succeeded with their environments, and the errors on the way."""

    trajectories: list[Trajectory]
    envs: list[Env]
    errors: list[RolloutError] = field(default_factory=list)


class RolloutStrategy(ABC):
    """Runs the environments of a group. ``run_one(env, index)`` plays one episode."""

    @property
    def catches_group_errors(self) -> bool:
        """Whether a group that cannot be completed is skipped instead of ending the run."""
        return False

    @abstractmethod
    async def execute(self, env_group_builder: EnvGroupBuilder, envs: Sequence[Env], run_one: RunOne) -> RolloutResult:
        """Play all episodes of a group."""


@dataclass
class FailFast(RolloutStrategy):
    """The first error ends the run (and cancels the other rollouts of the group)."""

    async def execute(self, env_group_builder: EnvGroupBuilder, envs: Sequence[Env], run_one: RunOne) -> RolloutResult:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_coroutine(run_one(env, index))) for index, env in enumerate(envs)]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return RolloutResult([task.result() for task in tasks], list(envs))


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

    async def execute(self, env_group_builder: EnvGroupBuilder, envs: Sequence[Env], run_one: RunOne) -> RolloutResult:
        return await _play(env_group_builder, envs, run_one, self.max_retries, self.per_rollout_timeout, len(envs))


@dataclass
class MinViableGroup(RolloutStrategy):
    """A group counts when ``min_successful`` episodes succeed (default: three quarters, rounded up)."""

    min_successful: int | None = None
    max_retries: int = 3
    per_rollout_timeout: float = 0

    @property
    def catches_group_errors(self) -> bool:
        return True

    async def execute(self, env_group_builder: EnvGroupBuilder, envs: Sequence[Env], run_one: RunOne) -> RolloutResult:
        needed = self.min_successful if self.min_successful is not None else math.ceil(0.75 * len(envs))
        return await _play(env_group_builder, envs, run_one, self.max_retries, self.per_rollout_timeout, needed)


async def _coroutine(awaitable: Awaitable[Trajectory]) -> Trajectory:
    return await awaitable


async def _play(
    builder: EnvGroupBuilder, envs: Sequence[Env], run_one: RunOne, retries: int, timeout: float, needed: int
) -> RolloutResult:
    errors: list[RolloutError] = []
    slots: dict[int, tuple[Trajectory, Env]] = {}

    async def attempt(index: int, env: Env) -> None:
        try:
            slots[index] = (await asyncio.wait_for(_coroutine(run_one(env, index)), timeout or None), env)
        except Exception as error:
            logger.warning("rollout %d failed: %s: %s", index, type(error).__name__, error)
            errors.append(RolloutError(type(error).__name__, str(error)))

    pending = dict(enumerate(envs))
    while pending:
        await asyncio.gather(*(attempt(index, env) for index, env in pending.items()))
        missing = [index for index in pending if index not in slots]
        if not missing or retries <= 0 or len(slots) >= needed:
            break
        again = missing[:retries]
        retries -= len(again)
        fresh = await builder.make_envs()
        pending = {index: fresh[index] for index in again}
    if len(slots) < needed or not slots:
        kinds = ", ".join(sorted({error.error_type for error in errors}))
        last = errors[-1].error_message if errors else "no environments"
        raise AllTrajectoriesFailedError(
            f"{len(slots)} of {len(envs)} rollouts succeeded, {needed} needed ({kinds}): {last}"
        )
    ordered = [slots[index] for index in sorted(slots)]
    return RolloutResult([trajectory for trajectory, _ in ordered], [env for _, env in ordered], errors)


def rollout_strategy_from_config(rollout_error_tolerance: bool | RolloutStrategy | None) -> RolloutStrategy:
    """False or None: fail fast. True: retry. A strategy: itself."""
    if isinstance(rollout_error_tolerance, RolloutStrategy):
        return rollout_error_tolerance
    if rollout_error_tolerance in (None, False):
        return FailFast()
    if rollout_error_tolerance is True:
        return RetryOnFailure()
    raise ConfigurationError(f"rollout_error_tolerance={rollout_error_tolerance!r}: give true, false or a strategy")
