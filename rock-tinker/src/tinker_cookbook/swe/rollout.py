"""One rollout: a Harbor job in a sandbox whose agent is answered by the policy, graded by the task's verifier."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tinker_cookbook.swe.budget import Deadline
from tinker_cookbook.swe.errors import RolloutFailed
from tinker_cookbook.swe.policy import Policy
from tinker_cookbook.swe.pull_runner import ModelService, pull
from tinker_cookbook.swe.trajectory import Trajectory

log = logging.getLogger(__name__)

# Seconds that taking a sandbox down may take, after success, failure or Ctrl-C alike.
_CLOSE_SECONDS = 60.0


class TrialResult(Protocol):
    """What the job says about its trial."""

    @property
    def reward(self) -> float | None: ...
    @property
    def evaluated(self) -> bool: ...
    @property
    def exception(self) -> dict[str, Any] | None: ...
    @property
    def report(self) -> dict[str, Any] | None: ...


class AgentJob(Protocol):
    """A job that runs an agent on one task in a sandbox of its own."""

    @property
    def model_service(self) -> ModelService: ...
    async def submit(self) -> None: ...
    async def wait(self, timeout: float) -> Sequence[TrialResult]: ...
    async def export(self, folder: Path) -> None: ...
    async def close(self) -> None: ...


@dataclass
class Rollout:
    """The outcome. `error` is None exactly when the rollout ran to its end and was graded."""

    trajectory: Trajectory
    seconds: float
    error: str | None = None
    report: dict[str, Any] | None = None
    agent_exception: dict[str, Any] | None = None
    refusals: list[str] = field(default_factory=list)
    exported_to: Path | None = None

    @property
    def usable(self) -> bool:
        """Whether it may be scored and trained on: it was graded and the policy spoke."""
        return self.error is None and self.trajectory.evaluated and bool(self.trajectory.turns)

    @property
    def reward(self) -> float:
        """The verifier's reward. Raises ValueError for a rollout that was not graded: that is no 0."""
        if not self.usable or self.trajectory.reward is None:
            raise ValueError(f"this rollout has no reward: {self.error or 'not evaluated'}")
        return self.trajectory.reward

    def summary(self) -> dict[str, Any]:
        """The fields of summary.json."""
        return {
            "task_id": self.trajectory.task_id,
            "reward": self.trajectory.reward if self.trajectory.evaluated else None,
            "evaluated": self.trajectory.evaluated,
            "episode_done": self.usable,
            "turns_used": len(self.trajectory.turns),
            "time_seconds": round(self.seconds, 3),
            "error": self.error,
            "agent_exception": self.agent_exception,
            "refused_calls": len(self.refusals),
            "exported_to": str(self.exported_to) if self.exported_to else None,
        }


async def roll_out(
    job: AgentJob,
    task_id: str,
    policy: Policy,
    deadline: Deadline,
    export_to: Path,
    *,
    temperature: float = 1.0,
    label: str = "",
) -> Rollout:
    """Runs one rollout and takes its sandbox down, whatever happens. `label` tells rollouts at the same time apart in the
    log.

    A failure becomes a Rollout with an `error`, so that a group goes on without it; only cancellation is passed on.
    """
    started = time.monotonic()
    conversation = policy.conversation(temperature, label)
    trajectory = Trajectory(task_id, conversation.turns)
    rollout = Rollout(trajectory, 0.0, refusals=conversation.refusals)
    submitted = False  # a job that is not has taken its sandbox down itself, and there is nothing to copy out
    try:
        await _within(job.submit(), deadline, "submit")
        submitted = True
        log.info("%ssandbox of %s started after %.1f s; its agent works", label, task_id, time.monotonic() - started)
        await pull(job.model_service, conversation, deadline)
        trials = await _within(job.wait(deadline.remaining()), deadline, "verifier")
        _grade(rollout, trials)
    except RolloutFailed as failure:
        rollout.error = str(failure)
    finally:
        await _take_down(job, rollout, export_to if submitted else None)
        rollout.seconds = time.monotonic() - started
    return rollout


def _grade(rollout: Rollout, trials: Sequence[TrialResult]) -> None:
    if not trials:
        raise RolloutFailed("verifier", "the job left no trial result; see the job's log in the sandbox export")
    trial = trials[0]
    rollout.agent_exception = trial.exception
    rollout.report = trial.report
    if not trial.evaluated or trial.reward is None:
        reason = _exception_line(trial.exception) or "it left no reward"
        raise RolloutFailed("verifier", f"the verifier could not run, so this rollout is not evaluated ({reason})")
    rollout.trajectory.reward = float(trial.reward)
    rollout.trajectory.evaluated = True


async def _within(step: Any, deadline: Deadline, phase: str) -> Any:
    """Awaits one step of a job; time-outs and errors of the job become RolloutFailed with the phase."""
    try:
        async with asyncio.timeout(deadline.remaining()):
            return await step
    except TimeoutError as error:
        raise deadline.exceeded(phase) from error
    except RolloutFailed:
        raise
    except Exception as error:
        raise RolloutFailed(phase, f"{type(error).__name__}: {error}") from error


async def _take_down(job: AgentJob, rollout: Rollout, export_to: Path | None) -> None:
    """Copies the trajectories of agent and verifier out, if there is a folder for them, then removes the sandbox. Never
    raises but for cancellation."""
    cleaning = asyncio.ensure_future(_export_and_close(job, rollout, export_to))
    try:
        # A second Ctrl-C must not leave the sandbox behind: the clean-up goes on while the cancellation waits.
        await asyncio.shield(cleaning)
    except asyncio.CancelledError:
        await asyncio.wait([cleaning], timeout=_CLOSE_SECONDS)
        raise


async def _export_and_close(job: AgentJob, rollout: Rollout, export_to: Path | None) -> None:
    task_id = rollout.trajectory.task_id
    try:
        if export_to is not None:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await job.export(export_to)
            rollout.exported_to = export_to
    except Exception as error:
        log.warning("the logs of the sandbox of %s could not be copied out: %s", task_id, error)
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await job.close()
    except Exception as error:
        log.warning("the sandbox of %s could not be removed: %s", task_id, error)


def _exception_line(exception: dict[str, Any] | None) -> str:
    if not exception:
        return ""
    kind = exception.get("exception_type") or exception.get("type") or "error"
    message = str(exception.get("exception_message") or exception.get("message") or "").strip().splitlines()
    return f"{kind}: {message[0]}" if message else str(kind)
