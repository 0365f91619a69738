"""A DeepCoder problem, the tool that checks a solution of it, and the reward of an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinker_cookbook.recipes.code_rl.code_grading import CodeProblem, program_reward, runner_of
from tinker_cookbook.recipes.code_rl.env import CheckTool
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.types import Metrics
from tinker_cookbook.sandbox import SandboxBackend


@dataclass(frozen=True)
class DeepcoderTask:
    """A problem, its tests (``input`` and ``output`` of the program) and the code to begin from."""

    problem: str
    tests: list[dict[str, Any]]
    starter_code: str | None = None

    def as_problem(self) -> CodeProblem:
        """The problem in the form that the recipe's environment runs."""
        question = f"{self.problem}\n\nBegin with:\n{self.starter_code}" if self.starter_code else self.problem
        return CodeProblem(question, tuple((str(test["input"]), str(test["output"])) for test in self.tests))


class DeepcoderTool(CheckTool):
    """The tool ``check_solution`` of a task: runs a program against its tests in a ``/run_code`` service.

    ``timeout``: seconds for each test.
    """

    def __init__(self, task: DeepcoderTask, sandbox_backend: SandboxBackend | None = None, timeout: int = 6) -> None:
        super().__init__(runner_of(sandbox_backend), task.as_problem(), timeout)
        self.task = task


@dataclass(frozen=True)
class DeepcoderReward:
    """``correct + format_coef * (format − 1)``: the last answer's last code block against the tests. ``timeout``: seconds for
    each test."""

    task: DeepcoderTask
    sandbox_backend: SandboxBackend | None = None
    timeout: int = 6
    format_coef: float = 0.1

    async def __call__(self, history: list[Message]) -> tuple[float, Metrics]:
        runner = runner_of(self.sandbox_backend)
        return await program_reward(history, runner, self.task.as_problem(), self.format_coef, self.timeout)
