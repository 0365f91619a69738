"""Metrics of trajectories, and the evaluator that plays the held-out dataset."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np

import tinker
from tinker_cookbook.completers import TinkerTokenCompleter, TokenCompleter
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
from tinker_cookbook.rl.rollout_logging import (
    RolloutSummaryExportConfig,
    RolloutSummaryGroup,
    serialize_rollout_summaries_from_groups,
)
from tinker_cookbook.rl.rollout_strategy import FailFast, RolloutStrategy
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import STOP_METRIC_PREFIX, EnvGroupBuilder, RLDataset, TrajectoryGroup
from tinker_cookbook.stores.training_store import TrainingRunStore
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.misc_utils import all_same, dict_mean


def compute_trajectory_metrics(
    trajectory_groups_P: list[TrajectoryGroup], taglist_P: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Metrics under ``env/all/``, and under ``env/<tag>/`` for each tag that marks some but not all groups."""
    if not trajectory_groups_P:
        return {}
    metrics = {f"env/all/{key}": value for key, value in _group_metrics(trajectory_groups_P).items()}
    for tag in sorted({tag for tags in taglist_P for tag in tags}):
        chosen = [group for group, tags in zip(trajectory_groups_P, taglist_P, strict=True) if tag in tags]
        if len(chosen) < len(trajectory_groups_P):
            metrics.update({f"env/{tag}/{key}": value for key, value in _group_metrics(chosen).items()})
    return metrics


def _group_metrics(groups: list[TrajectoryGroup]) -> dict[str, float]:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories_G]
    turns = [turn for trajectory in trajectories for turn in trajectory.transitions]
    actions = [len(turn.ac.tokens) for turn in turns]
    observations = [turn.ob.length for turn in turns]
    rewards = [reward for group in groups for reward in group.get_total_rewards()]
    out: dict[str, float] = {
        "ac_tokens_per_turn": sum(actions) / max(len(turns), 1),
        "ob_tokens_per_turn": sum(observations) / max(len(turns), 1),
        "turns_per_episode": len(turns) / max(len(trajectories), 1),
        "total_episodes": len(trajectories),
        "total_turns": len(turns),
        "total_ac_tokens": sum(actions),
        "total_ob_tokens": sum(observations),
        "total_cached_ob_tokens": sum(turn.ac.prompt_cache_hit_tokens for turn in turns),
        "reward/total": float(np.mean(rewards)) if rewards else 0.0,
    }
    out.update(_by_group(groups))
    rows = [dict(turn.metrics) for turn in turns] + [dict(row) for group in groups for row in group.metrics_G]
    out.update(dict_mean([{k: v for k, v in row.items() if not k.startswith(STOP_METRIC_PREFIX)} for row in rows]))
    # An ending happens once, however many turns there were: its share of the episodes.
    endings = Counter(
        key for turn in turns for key, v in turn.metrics.items() if v and key.startswith(STOP_METRIC_PREFIX)
    )
    out.update({key: count / max(len(trajectories), 1) for key, count in endings.items()})
    return out


def _by_group(groups: list[TrajectoryGroup]) -> dict[str, float]:
    mixed = good = bad = 0
    for group in groups:
        rewards = group.get_total_rewards()
        if rewards and not all_same(rewards):
            mixed += 1
        elif rewards and rewards[0] >= 0.5:
            good += 1
        else:
            bad += 1
    names = {"frac_mixed": mixed, "frac_all_good": good, "frac_all_bad": bad}
    return {f"by_group/{name}": count / max(len(groups), 1) for name, count in names.items()}


def dataset_to_env_group_builders(dataset: RLDataset) -> list[EnvGroupBuilder]:
    """All groups of a dataset."""
    return [builder for index in range(len(dataset)) for builder in dataset.get_batch(index)]


class RLTestSetEvaluator(SamplingClientEvaluator):
    """Plays every group of a dataset once. ``temperature`` is 1 unless asked for otherwise."""

    def __init__(
        self,
        dataset: RLDataset,
        max_tokens: int,
        name: str = "test",
        num_groups_to_log: int = 4,
        strategy: RolloutStrategy | None = None,
        *,
        temperature: float = 1.0,
        termination: TerminationRewardPolicy | None = None,
    ) -> None:
        self.env_group_builders_P = dataset_to_env_group_builders(dataset)
        self.max_tokens = max_tokens
        self.name = name
        self.num_groups_to_log = num_groups_to_log
        self.temperature = temperature
        self.strategy = strategy or FailFast()
        self.termination = termination

    async def __call__(
        self,
        sampling_client: tinker.SamplingClient,
        *,
        rollout_summary_export: RolloutSummaryExportConfig | None = None,
        store: TrainingRunStore | None = None,
    ) -> dict[str, float]:
        policy = TinkerTokenCompleter(sampling_client, max_tokens=self.max_tokens, temperature=self.temperature)
        return await self.eval_token_completer(policy, rollout_summary_export=rollout_summary_export, store=store)

    async def eval_token_completer(
        self,
        policy: TokenCompleter,
        *,
        rollout_summary_export: RolloutSummaryExportConfig | None = None,
        store: TrainingRunStore | None = None,
    ) -> dict[str, float]:
        """Metrics of a policy, each with the evaluator's name in front. Summaries of the rollouts go to the store, if asked
        for."""

        async def play(index: int, builder: EnvGroupBuilder) -> TrajectoryGroup | None:
            with logtree.optional_enable_logging(index < self.num_groups_to_log):
                try:
                    return await do_group_rollout(builder, policy, self.strategy, self.termination)
                except AllTrajectoriesFailedError:
                    if not self.strategy.catches_group_errors:
                        raise
                    return None

        played = await asyncio.gather(*(play(i, builder) for i, builder in enumerate(self.env_group_builders_P)))
        groups, tags = [], []
        for builder, group in zip(self.env_group_builders_P, played, strict=True):
            if group is not None:
                groups.append(group)
                tags.append(builder.logging_tags())
        if rollout_summary_export is not None and store is not None:
            export = rollout_summary_export
            rows = [
                RolloutSummaryGroup(group, taglist, export.sampling_client_step)
                for group, taglist in zip(groups, tags, strict=True)
            ]
            records = serialize_rollout_summaries_from_groups(
                split=export.split, iteration=export.iteration, groups_P=rows
            )
            store.write_rollouts(export.iteration, records, export.base_name)
        return {f"{self.name}/{key}": value for key, value in compute_trajectory_metrics(groups, tags).items()}
