"""One rollout of a SWE-bench task, graded by its verifier: no training.

    python -m tinker_cookbook.recipes.eval_swe_bench --config TASK/config --run-dir RUN --task-id ID

Exit code 0 says that the episode ran to its end and was graded; whether the task was solved is `reward` in summary.json.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from tinker_cookbook.swe.entry import run
from tinker_cookbook.swe.harbor_job import HarborAgentJob
from tinker_cookbook.swe.options import Parser
from tinker_cookbook.swe.results import ResultsFolder
from tinker_cookbook.swe.session import Session, describe
from tinker_cookbook.swe.settings import read_settings
from tinker_cookbook.swe.tasks import task_name
from tinker_cookbook.swe.training_recipe import check_job, task_source

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the recipe as a program and returns its exit code."""
    parser = Parser("tinker_cookbook.recipes.eval_swe_bench", "One graded rollout of a SWE-bench task.")

    async def recipe() -> int:
        return await evaluate(parser.read(arguments))

    return run(recipe)


async def evaluate(options: argparse.Namespace) -> int:
    """Rolls out one task and writes summary.json, trajectory.txt and trajectory.json."""
    settings = read_settings(options.config, max_tokens=options.max_tokens)
    tasks = task_source(settings, options)
    if options.check:
        check_job(settings, tasks, options)
        return 0
    task = tasks.of_step(0)
    log.info("Run directory: %s", options.run_dir)
    results = ResultsFolder(options.run_dir, task_name(task))
    async with Session.open(
        settings, options.jobs_dir, HarborAgentJob, label="rollout", base_url=options.base_url
    ) as session:
        client = await session.service.create_sampling_client(base_model=settings.base_model)
        rollout = await session.roll_out(task, session.policy(client), results.path / "sandbox")
    log.info("Rollout done: %s, %s", task_name(task), describe(rollout))
    results.write_text("trajectory.txt", rollout.trajectory.as_text())
    results.write_json("trajectory.json", rollout.trajectory.as_json())
    if rollout.report is not None:
        results.write_json("report.json", rollout.report)
    first = rollout.trajectory.turns[0] if rollout.trajectory.turns else None
    summary = rollout.summary() | {"first_action_tokens": list(first.completion_tokens) if first else []}
    results.write_json("summary.json", summary)
    if not rollout.usable:
        log.error("this rollout has no score: %s", rollout.error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
