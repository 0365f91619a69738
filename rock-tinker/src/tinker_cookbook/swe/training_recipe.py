"""The program of the three training recipes; each of them is this with its own defaults."""

from __future__ import annotations

import argparse
import functools
import logging
from collections.abc import Sequence

from tinker_cookbook.launch import ServerJob
from tinker_cookbook.swe.entry import run
from tinker_cookbook.swe.errors import SettingError
from tinker_cookbook.swe.harbor_job import HarborAgentJob
from tinker_cookbook.swe.loop import LoopOptions, Mode, run_loop
from tinker_cookbook.swe.options import Parser
from tinker_cookbook.swe.results import ResultsFolder
from tinker_cookbook.swe.session import Session
from tinker_cookbook.swe.settings import RunSettings, read_settings
from tinker_cookbook.swe.tasks import TaskSource, family

log = logging.getLogger(__name__)


def training_main(
    mode: Mode, description: str, arguments: Sequence[str] | None, *, kl_beta: float, group_size: int
) -> int:
    """Runs a training recipe as a program.

    Args:
        kl_beta, group_size: the recipe's defaults of these options.

    Returns:
        The exit code: 0 when the job ran to its end and at least one rollout was graded.
    """
    parser = Parser(f"tinker_cookbook.recipes.{mode.replace('-', '_')}", description)
    parser.training(kl_beta=kl_beta, group_size=group_size)

    async def recipe() -> int:
        return await _train(mode, parser.read(arguments))

    return run(recipe)


async def _train(mode: Mode, options: argparse.Namespace) -> int:
    settings = read_settings(options.config, max_tokens=options.max_tokens)
    if settings.rollout_only:
        raise SettingError(
            f"{settings.config_dir} was configured with --rollout-only, so it has no training engine; "
            "make a new TASK folder and run configure.py there without --rollout-only"
        )
    if mode == "grpo" and options.group_size < 2:
        raise SettingError(f"--group-size is {options.group_size}; GRPO compares at least 2 rollouts of one task")
    tasks = task_source(settings, options)
    if options.check:
        check_job(settings, tasks, options)
        return 0
    log.info("Run directory: %s", options.run_dir)
    label = f"{mode}-{options.tasks.name if options.tasks else tasks.tasks[0]}"
    results = ResultsFolder(options.run_dir, label)
    async with Session.open(
        settings, options.jobs_dir, HarborAgentJob, label=mode, base_url=options.base_url
    ) as session:
        result = await run_loop(session, results, _loop_options(mode, options), tasks)
    if result["rollouts_succeeded"] == 0:
        log.error("no rollout was evaluated; see rollout_errors in %s/result.json", results.path)
        return 1
    log.info("%d of %d step(s) trained; results in %s", result["updates"], len(result["steps"]), results.path)
    return 0


def task_source(settings: RunSettings, options: argparse.Namespace) -> TaskSource:
    """The tasks that the options name: a family, one task, or the first task of harbor.yaml."""
    if options.tasks:
        return TaskSource(family(options.tasks), options.seed)
    task_id = options.task_id or next(iter(settings.task_ids), None)
    if task_id is None:
        raise SettingError(f"{settings.config_dir}/harbor.yaml names no task; give --task-id or --tasks FOLDER")
    settings.harbor_for(task_id)  # says so now when it is not there
    return TaskSource([task_id], options.seed)


def check_job(settings: RunSettings, tasks: TaskSource, options: argparse.Namespace) -> None:
    """Raises SettingError for what would stop the job at its beginning: harbor.yaml, and the backend's port and program."""
    HarborAgentJob(settings.harbor_for(tasks.of_step(0)))
    if options.base_url is None:
        ServerJob.check(settings.runtime_yaml)


def _loop_options(mode: Mode, options: argparse.Namespace) -> LoopOptions:
    return LoopOptions(
        mode=mode,
        learning_rate=options.learning_rate,
        lora_rank=options.lora_rank,
        kl_beta=options.kl_beta,
        num_steps=options.num_steps,
        group_size=options.group_size,
        rollout_concurrency=options.rollout_concurrency,
        loss_fn=options.loss_fn,
        advantage=options.advantage,
        reward_baseline=options.reward_baseline,
        max_train_transitions=options.max_train_transitions,
        stop_after_updates=options.stop_after_updates,
        save_state=options.save_state,
    )


ppo_main = functools.partial(
    training_main,
    "ppo",
    "PPO on single rollouts of a SWE task: the verifier's reward against a fixed baseline.",
    kl_beta=0.0,
    group_size=1,
)
ppo_kl_main = functools.partial(
    training_main,
    "ppo-kl",
    "PPO with a KL penalty against the base model.",
    kl_beta=0.05,
    group_size=1,
)
grpo_main = functools.partial(
    training_main,
    "grpo",
    "GRPO: rollouts of one task a step, each compared with the others of its group.",
    kl_beta=0.0,
    group_size=8,
)
