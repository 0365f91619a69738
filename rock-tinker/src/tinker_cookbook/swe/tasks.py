"""Which task a step works on: one task, or one drawn from a family."""

from __future__ import annotations

import random
from pathlib import Path

from tinker_cookbook.swe.errors import SettingError


class TaskSource:
    """Draws tasks for steps, the same ones for the same seed.

    Args:
        tasks: task ids or folders of Harbor tasks.
        seed: of the order; a family is gone through in a shuffled order before a task comes again.
    """

    def __init__(self, tasks: list[Path | str], seed: int) -> None:
        if not tasks:
            raise SettingError("there is no task to work on; give --task-id or --tasks FOLDER")
        self.tasks = tasks
        self._seed = seed

    def of_step(self, step: int) -> Path | str:
        """The task of step 0, 1, 2 …"""
        turn, place = divmod(step, len(self.tasks))
        order = list(self.tasks)
        random.Random(f"{self._seed}:{turn}").shuffle(order)
        return order[place]


def family(folder: Path) -> list[Path | str]:
    """The Harbor tasks of a folder, by name.

    Raises:
        SettingError: no such folder, or no task in it.
    """
    if not folder.is_dir():
        raise SettingError(f"--tasks {folder} is no folder; give a folder whose sub-folders are Harbor tasks")
    found: list[Path | str] = [path.parent.resolve() for path in sorted(folder.glob("*/task.toml"))]
    if not found:
        raise SettingError(f"--tasks {folder} holds no Harbor task (a sub-folder with task.toml)")
    return found


def task_name(task: Path | str) -> str:
    """The id under which a task is shown."""
    return task.name if isinstance(task, Path) else task
