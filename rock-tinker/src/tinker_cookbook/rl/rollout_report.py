"""Files of one training iteration: HTML report, its JSON tree, rollout summaries; and evaluations with the same."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tinker
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.rl.batch_source import WrappedTrajectoryGroup
from tinker_cookbook.rl.config import Config
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
from tinker_cookbook.rl.rollout_logging import (
    RolloutSummaryGroup,
    rollout_summaries_jsonl_path,
    write_rollout_summaries_jsonl_from_groups,
)
from tinker_cookbook.rl.types import TrajectoryGroup
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.misc_utils import iteration_dir


class IterationReport:
    """``train.html`` and ``train_logtree.json`` of an iteration; only the first groups are written out."""

    def __init__(self, log_path: str, step: int, num_groups_to_log: int) -> None:
        self.step = step
        self.directory = self.folder(log_path, step)
        self.num_groups_to_log = num_groups_to_log
        self._stack = contextlib.ExitStack()

    @staticmethod
    def folder(log_path: str, step: int) -> Path:
        """Where the files of an iteration are."""
        return iteration_dir(log_path, step)

    def __enter__(self) -> IterationReport:
        if self.num_groups_to_log > 0:
            self._stack.enter_context(logtree.init_trace(f"Iteration {self.step}", self.directory / "train.html"))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @contextlib.contextmanager
    def rollouts(self, group_index: int) -> Iterator[bool]:
        """Section of a group; yields whether it is written out."""
        if group_index >= self.num_groups_to_log:
            yield False
            return
        with logtree.scope_header(f"Group {group_index}"):
            yield True

    def summarize(self, groups: Sequence[WrappedTrajectoryGroup], tokenizer: Any) -> None:
        """Table of rewards, and the text of the first groups."""
        rows = []
        for index, item in enumerate(groups):
            for traj, reward in enumerate(item.trajectory_group.get_total_rewards()):
                turns = item.trajectory_group.trajectories_G[traj].transitions
                rows.append(
                    {
                        "group": index,
                        "trajectory": traj,
                        "reward": reward,
                        "turns": len(turns),
                        "sampled tokens": sum(len(turn.ac.tokens) for turn in turns),
                        "sampler step": item.sampling_client_step,
                    }
                )
        logtree.table(rows[:256], caption="rewards")
        for index, item in enumerate(groups[: self.num_groups_to_log]):
            with logtree.scope_details(f"Texts of group {index}"):
                for trajectory in item.trajectory_group.trajectories_G:
                    logtree.details(_text(trajectory.transitions, tokenizer), summary=str(trajectory.stop_reason))

    def write_summaries(self, split: str, groups: Sequence[WrappedTrajectoryGroup]) -> None:
        """Rollout summaries of the groups."""
        write_rollout_summaries_jsonl_from_groups(
            rollout_summaries_jsonl_path(self.directory, split),
            split=split,
            iteration=self.step,
            groups_P=[
                RolloutSummaryGroup(g.trajectory_group, g.env_group_builder.logging_tags(), g.sampling_client_step)
                for g in groups
            ],
        )


def _text(transitions: Sequence[Any], tokenizer: Any) -> str:
    parts = []
    for turn in transitions:
        prompt = [token for chunk in turn.ob.chunks for token in getattr(chunk, "tokens", [])]
        parts.append(f"{tokenizer.decode(prompt)}⟦{tokenizer.decode(turn.ac.tokens)}⟧ reward {turn.reward:.3f}")
    return "\n---\n".join(parts)


async def run_evaluations(
    evaluators: Sequence[SamplingClientEvaluator], sampling_client: tinker.SamplingClient, config: Config, step: int
) -> dict[str, float]:
    """All evaluators at once, each with a report of its own."""
    labels = _labels(evaluators)
    results = await asyncio.gather(
        *(
            _evaluate(evaluator, label, sampling_client, config, step)
            for evaluator, label in zip(evaluators, labels, strict=True)
        )
    )
    return {key: value for result in results for key, value in result.items()}


def _labels(evaluators: Sequence[SamplingClientEvaluator]) -> list[str]:
    labels: list[str] = []
    for index, evaluator in enumerate(evaluators):
        name = re.sub(r"\W+", "_", str(getattr(evaluator, "name", type(evaluator).__name__)))
        labels.append(name if name not in labels else f"{name}_{index}")
    return labels


async def _evaluate(
    evaluator: SamplingClientEvaluator, label: str, sampling_client: tinker.SamplingClient, config: Config, step: int
) -> dict[str, float]:
    folder = iteration_dir(config.log_path, step)
    base = f"eval_{label}"
    if isinstance(evaluator, RLTestSetEvaluator) and config.rollout_json_export:

        def write(groups: list[TrajectoryGroup], tags: list[list[str]]) -> None:
            rows = [RolloutSummaryGroup(group, tag, step) for group, tag in zip(groups, tags, strict=True)]
            path = rollout_summaries_jsonl_path(folder, base)
            write_rollout_summaries_jsonl_from_groups(path, split=base, iteration=step, groups_P=rows)

        evaluator.on_groups = write
    if config.num_groups_to_log <= 0:
        return await evaluator(sampling_client)
    with logtree.init_trace(f"{label} at iteration {step}", folder / f"{base}.html"):
        return await evaluator(sampling_client)
