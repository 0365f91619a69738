"""Summaries of rollouts as JSON lines (``schema_version`` 1): numbers and logs of every step, no tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_cookbook.rl.types import TrajectoryGroup

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class RolloutSummaryExportConfig:
    """Where a group of summaries belongs."""

    split: str
    iteration: int
    base_name: str
    sampling_client_step: int | None = None


@dataclass(frozen=True)
class RolloutSummaryGroup:
    """A group with its tags and the step of the sampler that played it."""

    trajectory_group: TrajectoryGroup
    tags: list[str]
    sampling_client_step: int | None = None


def serialize_rollout_summaries_from_groups(
    *, split: str, iteration: int, groups_P: Sequence[RolloutSummaryGroup]
) -> list[dict[str, Any]]:
    """One row per trajectory."""
    rows = []
    for group_idx, item in enumerate(groups_P):
        group = item.trajectory_group
        totals = group.get_total_rewards()
        for traj_idx, trajectory in enumerate(group.trajectories_G):
            steps = [
                {
                    "step_idx": step_idx,
                    "ob_len": turn.ob.length,
                    "ac_len": len(turn.ac.tokens),
                    "reward": turn.reward,
                    "episode_done": turn.episode_done,
                    "metrics": turn.metrics,
                    "logs": turn.logs,
                }
                for step_idx, turn in enumerate(trajectory.transitions)
            ]
            rows.append(
                {
                    "schema_version": SCHEMA_VERSION,
                    "split": split,
                    "iteration": iteration,
                    "group_idx": group_idx,
                    "traj_idx": traj_idx,
                    "tags": list(item.tags),
                    "sampling_client_step": item.sampling_client_step,
                    "total_reward": totals[traj_idx],
                    "final_reward": group.final_rewards_G[traj_idx],
                    "trajectory_metrics": group.metrics_G[traj_idx],
                    "stop_reason": str(trajectory.stop_reason) if trajectory.stop_reason else None,
                    "steps": steps,
                    "final_ob_len": trajectory.final_ob.length,
                }
            )
    return rows


def _plain(value: Any) -> Any:
    """A number of another library as one of Python; anything else as text."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else str(value)


def rollout_summaries_jsonl_path(iteration_dir: str | Path, base_name: str) -> Path:
    """File of the summaries."""
    return Path(iteration_dir) / f"{base_name}_rollout_summaries.jsonl"


def write_rollout_summaries_jsonl_from_groups(
    path: str | Path, *, split: str, iteration: int, groups_P: Sequence[RolloutSummaryGroup]
) -> None:
    """Write the summaries."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    rows = serialize_rollout_summaries_from_groups(split=split, iteration=iteration, groups_P=groups_P)
    target.write_text("".join(json.dumps(row, default=_plain) + "\n" for row in rows), encoding="utf-8")


def _wrap(
    trajectory_groups_P: Sequence[TrajectoryGroup],
    taglist_P: Sequence[Sequence[str]],
    sampling_client_steps_P: Sequence[int | None] | None,
) -> list[RolloutSummaryGroup]:
    steps = sampling_client_steps_P or [None] * len(trajectory_groups_P)
    rows = zip(trajectory_groups_P, taglist_P, steps, strict=True)
    return [RolloutSummaryGroup(group, list(tags), step) for group, tags, step in rows]


def serialize_rollout_summaries(
    *,
    split: str,
    iteration: int,
    trajectory_groups_P: Sequence[TrajectoryGroup],
    taglist_P: Sequence[Sequence[str]],
    sampling_client_steps_P: Sequence[int | None] | None = None,
) -> list[dict[str, Any]]:
    """One row per trajectory, from parallel lists."""
    groups_P = _wrap(trajectory_groups_P, taglist_P, sampling_client_steps_P)
    return serialize_rollout_summaries_from_groups(split=split, iteration=iteration, groups_P=groups_P)


def write_rollout_summaries_jsonl(
    path: str | Path,
    *,
    split: str,
    iteration: int,
    trajectory_groups_P: Sequence[TrajectoryGroup],
    taglist_P: Sequence[Sequence[str]],
    sampling_client_steps_P: Sequence[int | None] | None = None,
) -> None:
    """Write the summaries, from parallel lists."""
    groups_P = _wrap(trajectory_groups_P, taglist_P, sampling_client_steps_P)
    write_rollout_summaries_jsonl_from_groups(path, split=split, iteration=iteration, groups_P=groups_P)
