"""Rollouts that are sampled and then not trained on: counted apart, and logged while a step takes long."""

from __future__ import annotations

import time
from collections.abc import Callable

from tinker_cookbook.rl.config import Config
from tinker_cookbook.rl.data_processing import has_constant_rewards
from tinker_cookbook.rl.train_step import rollout_usage
from tinker_cookbook.rl.types import TrajectoryGroup
from tinker_cookbook.utils import ml_log
from tinker_cookbook.utils.cost_estimation import CostTracker

DISCARDED_WORK_LOG_INTERVAL_SECONDS = 60.0


def count_discarded_rollout(cost_tracker: CostTracker | None, trajectory_group: TrajectoryGroup) -> None:
    """Count the tokens of a group that will not be trained on."""
    if cost_tracker is not None:
        cost_tracker.record_discarded_sampling(rollout_usage([trajectory_group]))


class DiscardedWorkLog:
    """Logs the running totals when groups are dropped and no step has been logged for ``interval_seconds``."""

    def __init__(
        self,
        cost_tracker: CostTracker | None,
        ml_logger: ml_log.Logger,
        *,
        interval_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cost, self._logger, self._clock = cost_tracker, ml_logger, clock
        self._interval = DISCARDED_WORK_LOG_INTERVAL_SECONDS if interval_seconds is None else interval_seconds
        self._logged_at = clock()

    def step_logged(self) -> None:
        """A step's metrics, with the totals, have been logged."""
        self._logged_at = self._clock()

    def discarded(self, step: int) -> None:
        """A group was dropped while this step was under way."""
        if self._cost is None or self._clock() - self._logged_at < self._interval:
            return
        metrics = self._cost.cumulative_metrics()
        if metrics:
            self._logger.log_metrics(metrics, step=step)
        self._logged_at = self._clock()


def drop_constant_reward_group(
    trajectory_group: TrajectoryGroup | None,
    config: Config,
    cost_tracker: CostTracker | None,
    discarded_log: DiscardedWorkLog | None = None,
    step: int = 0,
) -> TrajectoryGroup | None:
    """The group, or None (and its tokens are counted) where the configuration drops groups of one reward and it is one."""
    if trajectory_group is None or not config.remove_constant_reward_groups:
        return trajectory_group
    if not has_constant_rewards(trajectory_group):
        return trajectory_group
    count_discarded_rollout(cost_tracker, trajectory_group)
    if discarded_log is not None:
        discarded_log.discarded(step)
    return None
