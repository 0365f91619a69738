"""What an answer to a programming problem is worth: its program, run against the tests."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message, get_text_content
from tinker_cookbook.rl.types import Metrics
from tinker_cookbook.sandbox import SandboxBackend, SandboxFusionClient

FORMAT_COEF = 0.1
_CHECK = """
import json, subprocess, sys
failed = 0
for number, test in enumerate(json.load(open("tests.json"))):
    try:
        done = subprocess.run([sys.executable, "solution.py"], input=test["input"], capture_output=True, text=True, timeout=5)
        ok = done.returncode == 0 and done.stdout.split() == test["output"].split()
    except subprocess.TimeoutExpired:
        ok = False
    if not ok:
        failed += 1
        if failed == 1:
            print("test", number, "failed")
sys.exit(1 if failed else 0)
"""


class CodeRunner(Protocol):
    """Runs programs; see ``SandboxFusionClient`` and ``SandboxCodeRunner``."""

    async def run(
        self, code: str, files: dict[str, str] | None = None, timeout: float = 10, language: str = "python"
    ) -> tuple[bool, dict[str, Any]]:
        """Whether the code ended well, and details."""
        ...


@dataclass(frozen=True)
class CodeProblem:
    """A problem and its tests: standard input and expected output."""

    question: str
    tests: tuple[tuple[str, str], ...]


def extract_code_from_model(model_response: str) -> str | None:
    """The last fenced block of an answer, of whatever language; None without one."""
    found = re.findall(r"```\w*\n(.*?)```", model_response, flags=re.DOTALL)
    return found[-1].strip() if found else None


def runner_of(backend: SandboxBackend | None) -> CodeRunner:
    """Where programs run if nothing else is said: a ``/run_code`` service (``SANDBOX_URL``).

    Raises:
        ConfigurationError: the backend needs a sandbox of its own.
    """
    if backend not in (None, SandboxBackend.SANDBOXFUSION):
        raise ConfigurationError(
            f"sandbox_backend={backend} needs a sandbox of its own; use CodeDatasetBuilder with sandbox_backend=rock, or a "
            "/run_code service with sandbox_backend=sandboxfusion"
        )
    return SandboxFusionClient()


async def run_tests(
    runner: CodeRunner, program: str, problem: CodeProblem, seconds_per_test: float = 6
) -> tuple[bool, dict[str, Any]]:
    """Whether a program passes all tests of a problem, and the runner's answer."""
    tests = json.dumps([{"input": given, "output": expected} for given, expected in problem.tests])
    timeout = seconds_per_test * len(problem.tests) + 10
    return await runner.run(_CHECK, {"solution.py": program, "tests.json": tests}, timeout=timeout)


async def passes(
    runner: CodeRunner, program: str, problem: CodeProblem, seconds_per_test: float = 6
) -> tuple[bool, str]:
    """Whether a program passes all tests, and what to tell the model."""
    ok, answer = await run_tests(runner, program, problem, seconds_per_test)
    shown = (answer.get("run_result") or {}).get("stdout") or "tests failed"
    return ok, "all tests passed" if ok else str(shown).strip()


async def sandbox_check_correctness(
    sample: list[dict[str, Any]], generation: str, timeout: int = 6, backend: SandboxBackend | None = None
) -> tuple[bool, dict[str, Any]]:
    """Whether a program passes the tests of a sample (``input`` and ``output`` of the program); and the service's answer.
    ``timeout``: seconds for each test."""
    problem = CodeProblem("", tuple((str(test["input"]), str(test["output"])) for test in sample))
    return await run_tests(runner_of(backend), generation, problem, timeout)


async def program_reward(
    messages: list[Message],
    runner: CodeRunner,
    problem: CodeProblem,
    format_coef: float = FORMAT_COEF,
    seconds_per_test: float = 6,
) -> tuple[float, Metrics]:
    """``correct + format_coef * (format − 1)``: the last answer's last code block against the tests."""
    answers = [get_text_content(message) for message in messages if message["role"] == "assistant"]
    program = extract_code_from_model(answers[-1]) if answers else None
    correct = 0.0
    if program is not None:
        correct = float((await passes(runner, program, problem, seconds_per_test))[0])
    format_ok = float(program is not None)
    return correct + format_coef * (format_ok - 1), {"correct": correct, "format": format_ok}
