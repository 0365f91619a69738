"""code_rl and harbor_rl against a real backend and real sandboxes, with a tiny model that was taught one answer."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recipe_backend import RecipeBackend, metric_rows

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.exceptions import SandboxError
from tinker_cookbook.recipes.code_rl import env as code_env
from tinker_cookbook.recipes.code_rl.code_grading import sandbox_check_correctness
from tinker_cookbook.recipes.code_rl.deepcoder_tool import DeepcoderReward, DeepcoderTask, DeepcoderTool
from tinker_cookbook.recipes.harbor_rl import harbor_env
from tinker_cookbook.renderers import Message, get_text_content
from tinker_cookbook.sandbox import RockSandbox, SandboxCodeRunner, SandboxFusionClient
from tinker_cookbook.tool_use import ToolInput

pytestmark = [pytest.mark.slow, pytest.mark.namespaces, pytest.mark.timeout(300, func_only=True)]

PROGRAM = "```python\nprint(0)\n```"
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "touch /root/done"}}\n</tool_call>'
INSTRUCTION = "Make the file /root/done."
PROBLEM = code_env.CodeProblem("Double it.", (("2", "4"), ("5", "10")))
RIGHT = "print(2 * int(input()))"


@pytest.fixture(scope="module")
def sandbox_service() -> Iterator[Any]:
    """ROCK worker and admin."""
    source = Path(__file__).parents[1] / "rock" / "conftest.py"
    spec = importlib.util.spec_from_file_location("cookbook_rock_stack", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    folder = Path(tempfile.mkdtemp(prefix="rock-", dir=module.STATE_PARENT))
    stack = module.RockStack(folder)
    stack.write_config()
    try:
        stack.start("worker")
        stack.start("admin")
        yield stack
    finally:
        stack.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def run_code_url(sandbox_service: Any) -> Iterator[str]:
    """Address of ``/run_code``."""
    log = sandbox_service.folder / "code-service.log"
    command = [sys.executable, "-m", "rock.cli", "code-service", "start", "--port", "0", "--pool", "2"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, "--base-url", sandbox_service.url], stderr=stream, stdin=subprocess.DEVNULL
        )
    try:
        deadline = time.monotonic() + 60
        while "listens on http" not in (text := log.read_text()):
            assert process.poll() is None and time.monotonic() < deadline, text
            time.sleep(0.05)
        words = next(line for line in text.splitlines() if "listens on" in line).split()
        yield next(word for word in words if word.startswith("http")) + "/run_code"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


@pytest.fixture(scope="module")
def taught(recipe_backend: RecipeBackend, tmp_path_factory: pytest.TempPathFactory) -> str:
    """State of a model that answers programming problems with ``print(0)`` and the task with the right command."""
    folder = tmp_path_factory.mktemp("taught")
    tokenizer = tokenizer_utils.get_tokenizer(str(recipe_backend.model))
    renderer = renderers.get_renderer("qwen3_instruct", tokenizer, model_name=str(recipe_backend.model))
    check = code_env.CheckTool(None, PROBLEM).check_solution  # type: ignore[arg-type]
    bash = harbor_env.BashTool(None, 1).bash  # type: ignore[arg-type]
    code = renderer.create_conversation_prefix_with_tools([check.to_spec()], code_env.SYSTEM)
    shell = renderer.create_conversation_prefix_with_tools([bash.to_spec()], harbor_env.SYSTEM)
    rows = [(code, f"Print {n}.", PROGRAM) for n in (0, 1)] * 2 + [(shell, INSTRUCTION, CALL)] * 4

    def conversation(prefix: list[Message], question: str, answer: str) -> dict[str, Any]:
        before = [{"role": message["role"], "content": get_text_content(message)} for message in prefix]
        return {"messages": [*before, {"role": "user", "content": question}, {"role": "assistant", "content": answer}]}

    (folder / "answers.jsonl").write_text("".join(json.dumps(conversation(*row)) + "\n" for row in rows))
    settings = {
        **common(recipe_backend),
        "dataset": "answers.jsonl",
        "batch_size": 8,
        "max_length": 1024,
        "test_size": 0,
        "num_epochs": 40,
        "learning_rate": 1e-2,
        "lr_schedule": "constant",
        "eval_every": 0,
        "save_every": 0,
        "seed": 1,
    }
    recipe_backend.run_recipe("chat_sl.train", folder, settings)
    return str(json.loads((folder / "run" / "checkpoints.jsonl").read_text().splitlines()[-1])["state_path"])


def common(backend: RecipeBackend) -> dict[str, Any]:
    return {"model_name": backend.model, "renderer_name": "qwen3_instruct", "log_path": "run", "lora_rank": 16}


def rewards(run: Path) -> set[float]:
    """Total rewards of the first batch's attempts."""
    rows = (run / "iteration_000000" / "train_rollout_summaries.jsonl").read_text().splitlines()
    return {round(json.loads(row)["total_reward"], 3) for row in rows}


@pytest.mark.parametrize("where", ["rock", "sandboxfusion"])
def test_programs_of_code_rl_run_in_sandboxes(
    where: str, recipe_backend: RecipeBackend, taught: str, sandbox_service: Any, run_code_url: str, tmp_path: Path
) -> None:
    rows = [{"question": f"Print {n}.", "tests": [{"input": "", "output": str(n)}]} for n in (0, 1)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        **common(recipe_backend),
        "load_checkpoint_path": taught,
        "dataset": "problems.jsonl",
        "groups_per_batch": 2,
        "group_size": 4,
        "max_tokens": 40,
        "max_steps": 1,
        "eval_every": 0,
        "sandbox_backend": where,
        "rock_base_url": sandbox_service.url,
    }
    recipe_backend.run_recipe("code_rl.train", tmp_path, settings, SANDBOX_URL=run_code_url)
    # print(0) solves the first problem (1.0) and fails the second one (0.0); -0.1 would be an answer without a program.
    assert {0.0, 1.0} <= rewards(tmp_path / "run")
    assert 0.0 < metric_rows(tmp_path / "run")[0]["env/all/correct"] <= 0.5


def test_commands_of_harbor_rl_run_in_sandboxes_and_the_tests_grade_them(
    recipe_backend: RecipeBackend, taught: str, sandbox_service: Any, tmp_path: Path
) -> None:
    task = tmp_path / "tasks" / "touch"
    (task / "tests").mkdir(parents=True)
    (task / "environment").mkdir()
    (task / "instruction.md").write_text(INSTRUCTION)
    (task / "task.toml").write_text("[metadata]\n")
    (task / "tests" / "test.sh").write_text("test -e /root/done && r=1 || r=0; echo $r > /logs/verifier/reward.txt\n")
    settings = {
        **common(recipe_backend),
        "load_checkpoint_path": taught,
        "tasks_dir": "tasks",
        "groups_per_batch": 1,
        "group_size": 3,
        "temperature": 0.5,
        "max_tokens": 160,
        "max_turns": 2,
        "max_steps": 1,
        "eval_every": 0,
        "rock_base_url": sandbox_service.url,
    }
    recipe_backend.run_recipe("harbor_rl.train", tmp_path, settings)
    (row,) = metric_rows(tmp_path / "run")
    assert 1.0 in rewards(tmp_path / "run") and row["env/all/solved"] > 0
    assert row["env/all/tool_calls"] > 0


async def test_both_runners_tell_right_programs_from_wrong_ones(sandbox_service: Any, run_code_url: str) -> None:
    runners = [SandboxFusionClient(run_code_url), SandboxCodeRunner(await RockSandbox.create(sandbox_service.url))]
    for runner in runners:
        assert await code_env.passes(runner, RIGHT, PROBLEM) == (True, "all tests passed")
        for program in ("print(4)", "raise SystemExit(1)", "while True: pass", "print(2 * int(input())"):
            ok, report = await code_env.passes(runner, program, PROBLEM)
            assert not ok and report, program
        await runner.close()


async def test_the_tool_and_the_reward_of_deepcoder_use_the_code_service(
    run_code_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_URL", run_code_url)
    task = DeepcoderTask("Print the sum.", [{"input": "1 2", "output": "3"}, {"input": "4 5", "output": "9"}])
    right, wrong = "print(sum(map(int, input().split())))", "print(3)"
    tool = DeepcoderTool(task).check_solution
    for program, passed in ((right, 1.0), (wrong, 0.0)):
        assert (await tool.run(ToolInput({"code": program}))).metrics == {"passed": passed}
        ok, answer = await sandbox_check_correctness(task.tests, program)
        assert ok is bool(passed) and answer["status"] == ("Success" if passed else "Failed")
        history = [Message(role="assistant", content=f"```python\n{program}\n```")]
        assert await DeepcoderReward(task)(history) == (passed, {"correct": passed, "format": 1.0})


async def test_a_code_service_that_is_not_there_is_an_error_that_names_its_address() -> None:
    client = SandboxFusionClient("http://127.0.0.1:9/run_code")
    with pytest.raises(SandboxError, match="127.0.0.1:9.*SANDBOX_URL"):
        await client.run("print(1)")
    await client.close()
