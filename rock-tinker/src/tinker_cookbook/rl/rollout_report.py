"""Files of one training iteration: HTML report, its JSON tree, rollout summaries; and evaluations with the same."""

from __future__ import annotations

import asyncio
import contextlib
import logging
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
    RolloutSummaryExportConfig,
    RolloutSummaryGroup,
    rollout_summaries_jsonl_path,
    write_rollout_summaries_jsonl_from_groups,
)
from tinker_cookbook.rl.types import TrajectoryGroup
from tinker_cookbook.stores.training_store import TrainingRunStore
from tinker_cookbook.utils import logtree, trace
from tinker_cookbook.utils.misc_utils import iteration_dir

logger = logging.getLogger(__name__)


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


@trace.scope
async def run_evaluations_parallel(
    evaluators: Sequence[SamplingClientEvaluator],
    sampling_client: tinker.SamplingClient,
    config: Config,
    i_batch: int,
    store: TrainingRunStore | None = None,
) -> dict[str, Any]:
    """Metrics of all evaluators, which run at once, each with a report of its own."""
    labels = _labels(evaluators)
    results = await asyncio.gather(
        *(
            run_single_evaluation(evaluator, config, i_batch, sampling_client, label, store)
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


@trace.scope
async def run_single_evaluation(
    evaluator: SamplingClientEvaluator,
    config: Config,
    i_batch: int,
    sampling_client: tinker.SamplingClient,
    evaluator_label: str,
    store: TrainingRunStore | None = None,
) -> dict[str, Any]:
    """Metrics of an evaluator. Its report is ``eval_<label>.html`` in the folder of the iteration; summaries of rollouts go to
    the store, by default that of ``config.log_path``."""
    base = f"eval_{evaluator_label}"
    with contextlib.ExitStack() as stack:
        if config.num_groups_to_log > 0:
            path = iteration_dir(config.log_path, i_batch) / f"{base}.html"
            stack.enter_context(logtree.init_trace(f"{evaluator_label} at iteration {i_batch}", path))
        if not isinstance(evaluator, RLTestSetEvaluator) or not config.rollout_json_export:
            return await evaluator(sampling_client)
        export = RolloutSummaryExportConfig(split=base, iteration=i_batch, base_name=base, sampling_client_step=i_batch)
        store = store or TrainingRunStore.local(config.log_path)
        return await evaluator(sampling_client, rollout_summary_export=export, store=store)


def print_group(traj_group: TrajectoryGroup, tokenizer: Any) -> None:
    """Log the texts, rewards and metrics of a group."""
    totals = traj_group.get_total_rewards()
    for index, (trajectory, total) in enumerate(zip(traj_group.trajectories_G, totals, strict=True)):
        text = _text(trajectory.transitions, tokenizer)
        final, metrics = traj_group.final_rewards_G[index], traj_group.metrics_G[index]
        logger.info("trajectory %d: reward %.3f (group reward %.3f) %s\n%s", index, total, final, metrics, text)
