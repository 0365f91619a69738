"""Harbor tasks: a terminal in a sandbox, and a test script that writes the reward."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tinker_cookbook import renderers
from tinker_cookbook.exceptions import ConfigurationError, SandboxError
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Metrics, RLDataset
from tinker_cookbook.sandbox import SandboxInterface
from tinker_cookbook.tool_use import ToolResult, build_agent_tool_env, simple_tool_result, tool

SandboxFactory = Callable[[Path, int], Awaitable[SandboxInterface]]
SYSTEM = "You work in a Linux terminal. Use the tool bash to solve the task. When you are done, say so without a call."


@dataclass(frozen=True)
class HarborTask:
    """A task folder: ``instruction.md``, ``environment/``, ``tests/test.sh``."""

    task_name: str
    instruction: str
    task_dir: Path
    config: dict[str, object] = field(default_factory=dict)


def load_tasks(folder: str | Path, limit: int | None = None) -> list[HarborTask]:
    """All tasks below a folder.

    Raises:
        ConfigurationError: there is none.
    """
    root = Path(folder).expanduser()
    found = []
    for path in sorted(root.glob("*/instruction.md")):
        toml = path.parent / "task.toml"
        config = tomllib.loads(toml.read_text()) if toml.is_file() else {}
        found.append(HarborTask(path.parent.name, path.read_text(), path.parent, config))
    if not found:
        raise ConfigurationError(f"{root} holds no Harbor task (a folder with instruction.md)")
    return found[:limit]


class BashTool:
    """The tool ``bash`` in a sandbox."""

    def __init__(self, sandbox: SandboxInterface, command_timeout: int, max_output: int = 16_000) -> None:
        self._sandbox, self._timeout, self._max_output = sandbox, command_timeout, max_output

    @tool
    async def bash(self, command: Annotated[str, "A bash command"]) -> ToolResult:
        """Run a bash command and see its output."""
        result = await self._sandbox.run_command(command, workdir="/root", timeout=self._timeout)
        text = f"exit code {result.exit_code}\n{result.stdout}{result.stderr}"
        return simple_tool_result(text[: self._max_output])


async def grade(sandbox: SandboxInterface, task: HarborTask, timeout: int) -> float:
    """Upload the tests, run ``test.sh`` and read its reward (0 if it wrote none)."""
    for path in sorted((task.task_dir / "tests").rglob("*")):
        if path.is_file():
            target = f"/tests/{path.relative_to(task.task_dir / 'tests')}"
            written = await sandbox.write_file(
                target, path.read_text(errors="surrogateescape"), executable=path.suffix == ".sh"
            )
            if written.exit_code:
                raise SandboxError(f"cannot write {target}: {written.stderr}")
    await sandbox.run_command("mkdir -p /logs/verifier && bash /tests/test.sh", workdir="/root", timeout=timeout)
    plain = await sandbox.read_file("/logs/verifier/reward.txt")
    if plain.exit_code == 0 and plain.stdout.strip():
        return float(plain.stdout.strip())
    structured = await sandbox.read_file("/logs/verifier/reward.json")
    if structured.exit_code == 0 and structured.stdout.strip():
        value = json.loads(structured.stdout)
        return float(value["reward"] if "reward" in value else sum(value.values()) / len(value))
    return 0.0


class HarborGroupBuilder(EnvGroupBuilder):
    """Several attempts at one task, each in a sandbox of its own."""

    def __init__(
        self,
        task: HarborTask,
        renderer: renderers.Renderer,
        sandbox_factory: SandboxFactory,
        group_size: int,
        *,
        max_turns: int = 10,
        sandbox_timeout: int = 3600,
        command_timeout: int = 120,
        grader_timeout: int = 60,
        max_trajectory_tokens: int = 32 * 1024,
        max_generation_tokens: int | None = None,
        context_overflow_reward: float = -0.1,
    ) -> None:
        self.task, self.renderer, self.sandbox_factory, self.group_size = task, renderer, sandbox_factory, group_size
        self.max_turns, self.sandbox_timeout = max_turns, sandbox_timeout
        self.command_timeout, self.grader_timeout = command_timeout, grader_timeout
        self.max_trajectory_tokens, self.max_generation_tokens = max_trajectory_tokens, max_generation_tokens
        self.context_overflow_reward = context_overflow_reward
        self._sandboxes: list[SandboxInterface] = []

    async def make_envs(self) -> Sequence[Env]:
        envs: list[Env] = []
        for _ in range(self.group_size):
            sandbox = await self.sandbox_factory(self.task.task_dir / "environment", self.sandbox_timeout)
            self._sandboxes.append(sandbox)
            bash = BashTool(sandbox, self.command_timeout).bash
            prefix = self.renderer.create_conversation_prefix_with_tools([bash.to_spec()], SYSTEM)

            async def reward(_: list[Message], sandbox: SandboxInterface = sandbox) -> tuple[float, Metrics]:
                value = await grade(sandbox, self.task, self.grader_timeout)
                return value, {"solved": float(value >= 1.0)}

            envs.append(
                build_agent_tool_env(
                    self.renderer,
                    [bash],
                    [*prefix, Message(role="user", content=self.task.instruction)],
                    reward,
                    max_turns=self.max_turns,
                    terminate_on_parse_error=False,
                    max_trajectory_tokens=self.max_trajectory_tokens,
                    max_generation_tokens=self.max_generation_tokens,
                    context_overflow_reward=self.context_overflow_reward,
                )
            )
        return envs

    async def cleanup(self) -> None:
        sandboxes, self._sandboxes = self._sandboxes, []
        for sandbox in sandboxes:
            await sandbox.cleanup()

    def logging_tags(self) -> list[str]:
        return ["harbor"]


class HarborDataset(RLDataset):
    """Tasks in batches."""

    def __init__(self, builders: Sequence[Callable[[], HarborGroupBuilder]], batch_size: int) -> None:
        self.builders, self.batch_size = list(builders), batch_size

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [make() for make in self.builders[index * self.batch_size : (index + 1) * self.batch_size]]

    def __len__(self) -> int:
        return max(-(-len(self.builders) // self.batch_size), 1)
