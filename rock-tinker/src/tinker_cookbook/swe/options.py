"""Command-line options of the SWE recipes. run.sh hands its arguments on to them unchanged."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tinker_cookbook.swe.errors import SettingError


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def _count(text: str) -> int:
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def _natural(text: str) -> int:
    value = _whole(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def _rate(text: str) -> float:
    value = _number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _weight(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return value


class Parser(argparse.ArgumentParser):
    """Options that every SWE recipe has; `training()` adds those of the training recipes."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        task = os.environ.get("TASK")
        where = self.add_argument_group("where")
        where.add_argument(
            "--config",
            type=Path,
            default=Path(task) / "config" if task else None,
            help="folder with engine.yaml, runtime.yaml and harbor.yaml (default: $TASK/config)",
        )
        where.add_argument("--run-dir", type=Path, required=True, help="results go to RUN_DIR/results/")
        where.add_argument(
            "--jobs-dir",
            type=Path,
            default=Path(task) / "jobs" if task else None,
            help="logs of backend and runtime (default: $TASK/jobs)",
        )
        where.add_argument("--base-url", help="a backend that runs already; without it one is started for this job")
        where.add_argument("--check", action="store_true", help="look at options and configuration, and run nothing")
        what = self.add_argument_group("what")
        what.add_argument("--task-id", help="one task that harbor.yaml names (default: the first one)")
        what.add_argument("--tasks", type=Path, help="folder of Harbor tasks; each step draws one of them")
        what.add_argument("--max-tokens", type=_count, help="output budget of one model call (default: harbor.yaml)")
        what.add_argument("--seed", type=_natural, default=0, help="of the order of tasks (default: 0)")

    def training(self, *, kl_beta: float, group_size: int) -> Parser:
        """Adds the training options with a recipe's defaults."""
        train = self.add_argument_group("training")
        train.add_argument("--learning-rate", type=_rate, default=1e-6)
        train.add_argument("--lora-rank", type=_natural, default=32, help="0 trains all weights (default: 32)")
        train.add_argument("--kl-beta", type=_weight, default=kl_beta, help="weight of the KL penalty")
        train.add_argument("--num-steps", type=_count, default=1)
        train.add_argument("--group-size", type=_count, default=group_size, help="rollouts of one task a step")
        train.add_argument("--rollout-concurrency", type=_count, default=1, help="rollouts at the same time")
        train.add_argument("--max-train-transitions", type=_count, help="train on the first N turns of a rollout only")
        train.add_argument("--save-state", metavar="NAME", help="save weights and optimizer under this name at the end")
        train.add_argument("--loss-fn", choices=["ppo", "importance_sampling", "cispo"], default="ppo")
        train.add_argument("--advantage", choices=["mean", "std"], default="mean", help="normalisation within a group")
        train.add_argument(
            "--reward-baseline",
            type=float,
            default=0.5,
            help="what a single rollout's reward is compared with (group size 1; default: 0.5, half of a solved task)",
        )
        train.add_argument(
            "--stop-after-updates", type=_count, help="end before --num-steps once this many steps have trained"
        )
        return self

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2 and one sentence instead of a screen of usage."""
        self.exit(2, f"{self.prog}: {message}; --help lists the options\n")

    def read(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parses and checks the options.

        Raises:
            SettingError: a value is missing. (A malformed one ends the program with exit code 2, as argparse does.)
        """
        options = self.parse_args(arguments)
        if options.config is None:
            raise SettingError("neither --config nor the variable TASK is set; export TASK=<work folder>")
        if options.task_id and options.tasks:
            raise SettingError("--task-id and --tasks exclude each other; give one of them")
        options.jobs_dir = options.jobs_dir or options.config.parent / "jobs"
        if options.run_dir.exists() and not options.run_dir.is_dir():
            raise SettingError(f"--run-dir {options.run_dir} is no folder; name another one")
        return options
