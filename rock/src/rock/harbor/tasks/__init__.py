"""Builders of tasks in Harbor's format: repository problems from released sources, and a generated family of mini tasks.

``python -m rock.harbor.tasks --help`` is the command line. Everything is written once and never overwritten.
"""

from rock.harbor.tasks.mini import MINI_KINDS, MiniTask, mini_tasks, write_mini_tasks
from rock.harbor.tasks.repository import REPOSITORY_TASKS, build_repository_task

__all__ = ["MINI_KINDS", "REPOSITORY_TASKS", "MiniTask", "build_repository_task", "mini_tasks", "write_mini_tasks"]
