"""What came out of a job, read from the files that Harbor left."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class HarborTrialResult:
    """One trial.

    ``reward`` is None and ``evaluated`` False when the verifier could not run: no reward was written, it is no finite number, or a
    verifier that reports per test (``report.json``) gave a reward without its report. ``exception`` is Harbor's record of what
    went wrong {exception_type, exception_message, …}; a trial can have one and be evaluated all the same.
    """

    task_name: str
    trial_name: str
    reward: float | None
    evaluated: bool
    report: dict[str, Any] | None
    exception: dict[str, Any] | None
    result: dict[str, Any]
    folder: Path | None = None


@dataclass(frozen=True)
class JobResult:
    """The end of a job.

    Args:
        exit_code: of the job's process.
        trials: of a Harbor job, in the order of their names.
        logs_dir: folder on this machine with all files of the job.
        model_requests: requests that the ModelService saw; None where there was none.
        failure: what went wrong with the job as a whole; None when nothing did.
    """

    exit_code: int | None
    trials: list[HarborTrialResult] = field(default_factory=list)
    logs_dir: Path | None = None
    model_requests: int | None = None
    failure: str | None = None
    output: str = ""


def read_trials(job_folder: Path, reporting: set[str]) -> list[HarborTrialResult]:
    """All trials below a job folder of Harbor.

    Args:
        reporting: names of tasks whose verifier writes a report.json; a reward without it is no evaluation.
    """
    trials = []
    for path in sorted(job_folder.glob("*/result.json")):
        try:
            result = json.loads(path.read_text())
        except ValueError:
            continue
        if isinstance(result, dict) and "trial_name" in result:
            trials.append(_read_trial(path.parent, result, reporting))
    return trials


def _read_trial(folder: Path, result: dict[str, Any], reporting: set[str]) -> HarborTrialResult:
    report = _read_report(folder)
    rewards = (result.get("verifier_result") or {}).get("rewards") or {}
    reward = rewards.get("reward")
    task = str(result.get("task_name") or "")
    known = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
    if task in reporting and report is None:
        known = False
    return HarborTrialResult(
        task_name=task,
        trial_name=str(result["trial_name"]),
        reward=float(reward) if known and reward is not None else None,
        evaluated=known,
        report=report,
        exception=result.get("exception_info"),
        result=result,
        folder=folder,
    )


def _read_report(folder: Path) -> dict[str, Any] | None:
    for place in ("verifier/report.json", "verifier/evaluation/report.json"):
        try:
            report = json.loads((folder / place).read_text())
        except (OSError, ValueError):
            continue
        if isinstance(report, dict):
            return report
    return None
