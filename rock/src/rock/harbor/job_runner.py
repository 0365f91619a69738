"""The process of a Harbor job inside the sandbox: ``python -m rock.harbor.job_runner job.json``.

Runs the job through Harbor's own Job class, which writes config.json, lock.json, result.json and the trial folders. Beside each
trial it notes whether the task's verifier writes a report.json. Exit code 0: every trial ended; 1: the job itself failed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from pathlib import Path

from harbor.job import Job
from harbor.models.job.config import JobConfig


def note_reporting_tasks(job_folder: Path) -> None:
    """Writes ``reporting`` (the task's name) into the folders of trials whose tests/test.sh speaks of report.json."""
    for result_file in job_folder.glob("*/result.json"):
        try:
            result = json.loads(result_file.read_text())
            task = Path(result["config"]["task"]["path"])
            scripts = [path.read_text(errors="replace") for path in (task / "tests").glob("*") if path.is_file()]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if any("report.json" in script for script in scripts):
            (result_file.parent / "reporting").write_text(str(result.get("task_name")) + "\n")


async def run(config: JobConfig) -> int:
    """Runs the job and prints one line a trial."""
    job = await Job.create(config)
    result = await job.run()
    note_reporting_tasks(config.jobs_dir / config.job_name)
    for trial in result.trial_results:
        failure = f", {trial.exception_info.exception_type}" if trial.exception_info else ""
        rewards = trial.verifier_result.rewards if trial.verifier_result else None
        print(f"{trial.trial_name}: rewards {rewards}{failure}", flush=True)
    return 0


def main() -> int:
    try:
        config = JobConfig.model_validate_json(Path(sys.argv[1]).read_text())
        return asyncio.run(run(config))
    except Exception:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    sys.exit(main())
