"""A DeepCoder problem, the tool that checks a solution of it, and the reward of an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.code_rl.env import CodeProblem, passes, program_reward
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.types import Metrics
from tinker_cookbook.sandbox import SandboxBackend, SandboxFusionClient
from tinker_cookbook.tool_use import ToolResult, simple_tool_result, tool


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


class DeepcoderTool:
    """The tool ``check_solution``: runs a program against the tests of a task in a ``/run_code`` service.

    ``timeout``: seconds for each test.
    """

    def __init__(self, task: DeepcoderTask, sandbox_backend: SandboxBackend | None = None, timeout: int = 6) -> None:
        if sandbox_backend not in (None, SandboxBackend.SANDBOXFUSION):
            raise ConfigurationError(
                f"sandbox_backend={sandbox_backend} needs a sandbox of its own; use CodeDatasetBuilder, or a /run_code "
                "service with sandbox_backend=sandboxfusion"
            )
        self.task, self.timeout = task, timeout
        self.runner = SandboxFusionClient()

    @tool
    async def check_solution(self, code: Annotated[str, "The whole Python program"]) -> ToolResult:
        """Run a program against the tests of the problem."""
        passed, report = await passes(self.runner, code, self.task.as_problem(), self.timeout)
        return simple_tool_result(report, metrics={"passed": float(passed)})


@dataclass(frozen=True)
class DeepcoderReward:
    """``correct + format_coef * (format − 1)``: the last answer's last code block against the tests."""

    task: DeepcoderTask
    tool: DeepcoderTool
    format_coef: float = 0.1

    async def __call__(self, messages: list[Message]) -> tuple[float, Metrics]:
        return await program_reward(
            messages, self.tool.runner, self.task.as_problem(), self.format_coef, self.tool.timeout
        )
