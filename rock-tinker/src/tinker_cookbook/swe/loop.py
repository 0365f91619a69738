"""The training loop of PPO, PPO+KL and GRPO: roll out, compare, train, publish. The three differ in `LoopOptions`."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tinker
from tinker_cookbook.swe.advantages import Normalisation, group_advantages, penalise_kl, spread
from tinker_cookbook.swe.policy import Policy
from tinker_cookbook.swe.results import ResultsFolder
from tinker_cookbook.swe.rollout import Rollout
from tinker_cookbook.swe.sequences import TokenSequence, datum, merge_turns
from tinker_cookbook.swe.session import Session
from tinker_cookbook.swe.tasks import TaskSource, task_name
from tinker_cookbook.swe.tinker_policy import LossName, TrainReport, reference_logprobs, train

log = logging.getLogger(__name__)

Mode = Literal["ppo", "ppo-kl", "grpo"]


@dataclass(frozen=True)
class LoopOptions:
    """One training job.

    Attributes:
        group_size: rollouts of one task a step. With 1, the reward is compared with `reward_baseline`, else with the
            rewards of the group.
        kl_beta: weight of the KL penalty against the base model; 0 = none.
        max_train_transitions: train on the first N turns of each rollout only; None = all.
        stop_after_updates: end early once this many steps have trained.
    """

    mode: Mode
    learning_rate: float
    lora_rank: int
    kl_beta: float
    num_steps: int
    group_size: int
    rollout_concurrency: int
    loss_fn: LossName = "ppo"
    advantage: Normalisation = "mean"
    reward_baseline: float = 0.5
    max_train_transitions: int | None = None
    stop_after_updates: int | None = None
    save_state: str | None = None


@dataclass
class StepRecord:
    """What one step did, as it goes into step_result.json and result.json.

    `group_returns` and `group_advantages` are those of the rollouts that were graded, in the order of
    `graded_rollouts`; a rollout that failed or was not evaluated has neither.
    """

    step: int
    task_id: str
    group_returns: list[float] = field(default_factory=list)
    group_advantages: list[float] = field(default_factory=list)
    graded_rollouts: list[int] = field(default_factory=list)
    rollouts_succeeded: int = 0
    rollouts_started: int = 0
    rollout_errors: dict[int, str] = field(default_factory=dict)
    turns: list[int] = field(default_factory=list)
    skipped: str | None = None
    datums: int = 0
    train_tokens: int = 0
    kl_policy_base: float | None = None
    fwdbwd_metrics: dict[str, float] | None = None
    optim_metrics: dict[str, float] | None = None
    train_elapsed: float | None = None
    published_sampling_client: str | None = None

    def as_json(self) -> dict[str, Any]:
        """All fields, keys as text."""
        return {**vars(self), "rollout_errors": {str(key): text for key, text in self.rollout_errors.items()}}


class TrainingLoop:
    """Runs the steps of one job.

    Args:
        session: backend, client and rollouts.
        results: where the step files go.
    """

    def __init__(self, session: Session, results: ResultsFolder, options: LoopOptions) -> None:
        self._session = session
        self._results = results
        self._options = options
        self.steps: list[StepRecord] = []
        self.last_rollouts: list[Rollout] = []
        self._published = 0

    async def run(self, tasks: TaskSource) -> None:
        """All steps; `steps` holds their records afterwards."""
        options = self._options
        base_model = self._session.settings.base_model
        service = self._session.service
        client = await service.create_lora_training_client(base_model=base_model, rank=options.lora_rank)
        base = await service.create_sampling_client(base_model=base_model)
        log.info(
            "%s of %s: %s, %d step(s) of %d rollout(s), learning rate %g",
            options.mode,
            base_model,
            f"LoRA rank {options.lora_rank}" if options.lora_rank else "all weights",
            options.num_steps,
            options.group_size,
            options.learning_rate,
        )
        sampler = base  # a fresh run samples like its base model
        for step in range(options.num_steps):
            sampler = await self._step(step, tasks.of_step(step), client, sampler, base)
            updates = sum(record.skipped is None for record in self.steps)
            if options.stop_after_updates and updates >= options.stop_after_updates:
                break
        if options.save_state:
            await self._save(client, options.save_state)

    async def _step(
        self,
        step: int,
        task: Path | str,
        client: tinker.TrainingClient,
        sampler: tinker.SamplingClient,
        base: tinker.SamplingClient,
    ) -> tinker.SamplingClient:
        """One step; returns the sampling client of the next one."""
        options = self._options
        record = StepRecord(step, task_name(task), rollouts_started=options.group_size)
        self.steps.append(record)
        log.info("step %d of %d: task %s", step + 1, options.num_steps, record.task_id)
        policy: Policy = self._session.policy(sampler)
        rollouts = await self._session.roll_out_group(
            task,
            policy,
            self._results.path / f"step_{step:03d}",
            size=options.group_size,
            concurrency=options.rollout_concurrency,
        )
        self.last_rollouts = rollouts
        self._grade(record, rollouts)
        self._export(record, rollouts)
        if record.skipped is None:
            sampler = await self._train(record, rollouts, client, sampler, base)
        if record.skipped is not None:
            which = "" if options.mode == "grpo" else "train "
            log.info("skipping %sstep %d of %d: %s", which, step + 1, options.num_steps, record.skipped)
        self._results.write_json(f"step_{step:03d}/step_result.json", record.as_json())
        return sampler

    def _grade(self, record: StepRecord, rollouts: list[Rollout]) -> None:
        """Returns and advantages of the graded rollouts, or the reason why there is nothing to learn."""
        options = self._options
        record.turns = [len(rollout.trajectory.turns) for rollout in rollouts]
        for index, rollout in enumerate(rollouts):
            if rollout.usable:
                record.graded_rollouts.append(index)
                record.group_returns.append(rollout.reward)
            else:
                record.rollout_errors[index] = rollout.error or "not evaluated"
        record.rollouts_succeeded = len(record.graded_rollouts)
        if not record.graded_rollouts:
            record.skipped = "no rollout was evaluated, nothing to train on"
        elif options.group_size == 1:
            record.group_advantages = [value - options.reward_baseline for value in record.group_returns]
        elif len(record.group_returns) < 2:
            record.skipped = "only one rollout of the group was evaluated, so there is nothing to compare it with"
        else:
            record.group_advantages = group_advantages(record.group_returns, options.advantage)
            if not any(record.group_advantages) and options.kl_beta == 0:
                record.skipped = f"all returns are {record.group_returns[0]:g}, nothing to train on"

    async def _train(
        self,
        record: StepRecord,
        rollouts: list[Rollout],
        client: tinker.TrainingClient,
        sampler: tinker.SamplingClient,
        base: tinker.SamplingClient,
    ) -> tinker.SamplingClient:
        """One update and its publication. Sets `record.skipped` when every advantage is 0."""
        options = self._options
        sequences: list[TokenSequence] = []
        advantages: list[list[float]] = []
        for index, advantage in zip(record.graded_rollouts, record.group_advantages, strict=True):
            turns = rollouts[index].trajectory.turns[: options.max_train_transitions]
            for sequence in merge_turns(turns):
                sequences.append(sequence)
                advantages.append(spread(sequence, advantage))
        if options.kl_beta > 0 and sequences:
            reference = await reference_logprobs(base, sequences)
            advantages, record.kl_policy_base = penalise_kl(sequences, advantages, reference, options.kl_beta)
        data = [datum(seq, row) for seq, row in zip(sequences, advantages, strict=True) if any(row)]
        if not data:
            record.skipped = "every advantage is 0, nothing to train on"
            return sampler
        log.info("training on %d datum(s), %d tokens", len(data), sum(item.model_input.length for item in data))
        report: TrainReport = await train(
            client, data, loss_fn=options.loss_fn, loss_fn_config=None, learning_rate=options.learning_rate
        )
        record.datums = len(data)
        record.train_tokens = sum(sum(sequence.sampled) for sequence in sequences)
        record.fwdbwd_metrics = report.fwdbwd_metrics
        record.optim_metrics = report.optim_metrics
        record.train_elapsed = report.train_elapsed
        published = await client.save_weights_and_get_sampling_client()
        self._published += 1
        record.published_sampling_client = f"{client.model_id}/sampler/{self._published}"
        log.info("Weights published to sampler: %s", record.published_sampling_client)
        return published

    def _export(self, record: StepRecord, rollouts: list[Rollout]) -> None:
        """Every trajectory as text and JSON, also of steps that are skipped."""
        outcome = dict(
            zip(
                record.graded_rollouts,
                zip(record.group_returns, record.group_advantages or [0.0] * len(record.group_returns), strict=True),
                strict=True,
            )
        )
        for index, rollout in enumerate(rollouts):
            value, advantage = outcome.get(index, (None, None))
            name = f"step_{record.step:03d}/rollout_{index:02d}"
            self._results.write_text(f"{name}.txt", rollout.trajectory.as_text())
            more = {
                "return": value,
                "advantage": advantage,
                "error": rollout.error,
                "seconds": round(rollout.seconds, 3),
            }
            self._results.write_json(f"{name}.json", rollout.trajectory.as_json(**more))

    async def _save(self, client: tinker.TrainingClient, name: str) -> None:
        saved = await client.save_state(name)
        self._results.write_json("checkpoint.json", {"name": name, "path": saved.path})
        log.info("Training state saved: %s", saved.path)


async def run_loop(session: Session, results: ResultsFolder, options: LoopOptions, tasks: TaskSource) -> dict[str, Any]:
    """Runs a job and writes result.json, also when it is interrupted after some steps.

    Returns:
        The content of result.json.
    """
    loop = TrainingLoop(session, results, options)
    interrupted = True
    try:
        await loop.run(tasks)
        interrupted = False
    finally:
        result = _result(loop, options, interrupted)
        if loop.steps:
            results.write_json("result.json", result)
            if options.mode != "grpo" and loop.last_rollouts:
                results.write_text("trajectory.txt", loop.last_rollouts[0].trajectory.as_text())
    await asyncio.sleep(0)
    return result


def _result(loop: TrainingLoop, options: LoopOptions, interrupted: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "mode": options.mode,
        "interrupted": interrupted,
        "options": vars(options),
        "updates": sum(record.skipped is None and record.train_elapsed is not None for record in loop.steps),
        "rollouts_succeeded": sum(record.rollouts_succeeded for record in loop.steps),
        "steps": [record.as_json() for record in loop.steps],
    }
    if options.mode != "grpo" and loop.steps:
        last = loop.steps[-1]
        rollout = loop.last_rollouts[0] if loop.last_rollouts else None
        result |= {
            "task_id": last.task_id,
            "reward": last.group_returns[0] if last.group_returns else None,
            "rollout": rollout.summary() if rollout else None,
            "fwdbwd_metrics": last.fwdbwd_metrics,
            "optim_metrics": last.optim_metrics,
            "train_elapsed": last.train_elapsed,
            "published_sampling_client": last.published_sampling_client,
            "skipped": last.skipped,
        }
    return result
