"""Programming problems whose programs are run against tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import chz
import numpy as np

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.recipes.code_rl.code_grading import (
    FORMAT_COEF,
    CodeProblem,
    CodeRunner,
    passes,
    program_reward,
)
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Metrics, RLDataset, RLDatasetBuilder
from tinker_cookbook.sandbox import RockSandbox, SandboxBackend, SandboxCodeRunner, SandboxFusionClient
from tinker_cookbook.tool_use import ToolResult, build_agent_tool_env, simple_tool_result, tool
from tinker_cookbook.utils.file_utils import read_jsonl

SYSTEM = "Solve the programming problem in Python. End with the whole program in one ```python block."


class CheckTool:
    """The tool ``check_solution``."""

    def __init__(self, runner: CodeRunner, problem: CodeProblem, seconds_per_test: float = 6) -> None:
        self.runner, self.problem, self.seconds_per_test = runner, problem, seconds_per_test

    @tool
    async def check_solution(self, code: Annotated[str, "The whole Python program"]) -> ToolResult:
        """Run a program against the tests of the problem."""
        passed, report = await passes(self.runner, code, self.problem, self.seconds_per_test)
        return simple_tool_result(report, metrics={"passed": float(passed)})


@dataclass(frozen=True)
class CodeGroupBuilder(EnvGroupBuilder):
    """Several attempts at one problem."""

    problem: CodeProblem
    runner: CodeRunner
    renderer: renderers.Renderer
    num_envs: int
    max_turns: int = 3
    format_coef: float = FORMAT_COEF
    max_trajectory_tokens: int | None = None
    max_generation_tokens: int | None = None
    context_overflow_reward: float = 0.0
    seconds_per_test: float = 6

    async def _reward(self, messages: list[Message]) -> tuple[float, Metrics]:
        return await program_reward(messages, self.runner, self.problem, self.format_coef, self.seconds_per_test)

    async def make_envs(self) -> Sequence[Env]:
        check = CheckTool(self.runner, self.problem, self.seconds_per_test).check_solution
        prefix = self.renderer.create_conversation_prefix_with_tools([check.to_spec()], SYSTEM)
        messages = [*prefix, Message(role="user", content=self.problem.question)]
        return [
            build_agent_tool_env(
                self.renderer,
                [check],
                messages,
                self._reward,
                max_turns=self.max_turns,
                max_trajectory_tokens=self.max_trajectory_tokens,
                max_generation_tokens=self.max_generation_tokens,
                context_overflow_reward=self.context_overflow_reward,
            )
            for _ in range(self.num_envs)
        ]

    def logging_tags(self) -> list[str]:
        return ["code"]


class CodeDataset(RLDataset):
    """Problems in batches."""

    def __init__(self, builders: list[CodeGroupBuilder], batch_size: int) -> None:
        self.builders, self.batch_size = builders, batch_size

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return self.builders[index * self.batch_size : (index + 1) * self.batch_size]

    def __len__(self) -> int:
        return max(len(self.builders) // self.batch_size, 1)


def load_problems(dataset: str, split: str = "train") -> list[CodeProblem]:
    """deepcoder, or a JSONL file of rows ``{question, tests: [{input, output}]}``."""
    if dataset.endswith(".jsonl"):
        rows: Any = read_jsonl(dataset)
    elif dataset == "deepcoder":
        import datasets

        try:
            rows = datasets.load_dataset("agentica-org/DeepCoder-Preview-Dataset", "primeintellect", split=split)
        except Exception as error:
            raise ConfigurationError(f"DeepCoder cannot be loaded ({error}); give dataset=<file>.jsonl") from error
    else:
        raise ConfigurationError(f"dataset={dataset!r} is unknown; use deepcoder or a path that ends in .jsonl")
    problems = []
    for number, row in enumerate(rows, start=1):
        question, tests = row.get("question") or row.get("problem"), row.get("tests")
        try:
            tests = json.loads(tests) if isinstance(tests, str) else tests
            cases = tuple((str(t["input"]), str(t["output"])) for t in tests if "input" in t and "output" in t)
        except (TypeError, ValueError):
            question = None
        if not question:
            raise DataFormatError(
                f"{dataset}, row {number}: needs 'question' and 'tests', a list of 'input' and 'output'"
            )
        if cases:
            problems.append(CodeProblem(str(question), cases))
    return problems


@chz.chz
class CodeDatasetBuilder(RLDatasetBuilder):
    """Problems and where their programs run."""

    dataset: str
    batch_size: int
    group_size: int
    renderer_name: str
    model_name_for_tokenizer: str
    sandbox_backend: SandboxBackend = SandboxBackend.SANDBOXFUSION
    rock_base_url: str = "http://127.0.0.1:18080"
    rock_image: str = "local"
    seed: int = 0

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name_for_tokenizer)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        problems = await asyncio.to_thread(load_problems, self.dataset)
        order = [int(i) for i in np.random.default_rng(self.seed).permutation(len(problems))]
        runner: CodeRunner
        if self.sandbox_backend is SandboxBackend.ROCK:
            sandbox = await RockSandbox.create(self.rock_base_url, self.rock_image)
            runner = SandboxCodeRunner(sandbox)
        else:
            runner = SandboxFusionClient()
        builders = [CodeGroupBuilder(problems[i], runner, renderer, self.group_size) for i in order]
        return CodeDataset(builders, self.batch_size), None
