"""The command ``tinker-cookbook``: what it says when something is missing or wrong."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import chz
import httpx
import pytest
from click.testing import CliRunner

import tinker
from tinker_cookbook import cli
from tinker_cookbook.recipes import entry


@pytest.mark.parametrize(
    ("module", "extra"),
    [("chz", "cookbook"), ("transformers", "cookbook"), ("torch", "weights"), ("datasets", "recipes")],
)
def test_a_package_that_is_not_installed_is_named_with_the_extra_that_brings_it(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*arguments: object, **options: object) -> None:
        raise ModuleNotFoundError(f"No module named '{module}.part'", name=f"{module}.part")

    monkeypatch.setattr(cli.runpy, "run_module", missing)
    for command in (["recipe", "chat_sl"], ["chat"], ["play"]):
        done = CliRunner().invoke(cli.main, command)
        assert done.exit_code == 2
        assert done.output == f"Error: {module}.part is not installed; pip install 'rock-tinker[{extra}]' brings it\n"


def test_a_module_of_our_own_that_is_missing_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object, **options: object) -> None:
        raise ModuleNotFoundError("No module named 'tinker_cookbook.nowhere'", name="tinker_cookbook.nowhere")

    monkeypatch.setattr(cli.runpy, "run_module", missing)
    done = CliRunner().invoke(cli.main, ["chat"])
    assert isinstance(done.exception, ModuleNotFoundError)


def test_what_a_person_can_mend_is_one_line(tmp_path: Path) -> None:
    for command in (
        ["weights", "publish", str(tmp_path / "nowhere"), "me/x"],
        ["weights", "adapter", str(tmp_path), str(tmp_path / "out"), "--base-model", str(tmp_path)],
    ):
        done = CliRunner().invoke(cli.main, command)
        (line,) = done.output.splitlines()
        assert done.exit_code == 1 and line.startswith("Error: ")


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["chat", "--help"], "system_prompt"),
        (["play", "--help"], "game"),
        (["recipe", "chat_sl", "--help"], "batch_size"),
    ],
)
def test_help_lists_the_keys_of_the_program(command: list[str], key: str) -> None:
    done = run("tinker_cookbook.cli", *command)
    assert key in done.stdout and done.returncode == 0


@pytest.mark.parametrize("word", ["max_steps", "--max_steps"])
@pytest.mark.parametrize("recipe", ["sl_basic", "sl_loop"])
def test_a_setting_without_a_value_is_told_in_one_line(recipe: str, word: str) -> None:
    done = run(f"tinker_cookbook.recipes.{recipe}", word, "model_name=x")
    assert done.stderr == f"refused: {word!r} is no setting; write max_steps=VALUE, or --help for a list of all\n"
    assert done.returncode == 1


@pytest.mark.parametrize("recipe", ["sl_basic", "rl_basic"])
def test_a_plan_tells_its_settings_and_wrong_ones_without_a_traceback(recipe: str) -> None:
    shown = run(f"tinker_cookbook.recipes.{recipe}", "-h")
    assert "max_steps" in shown.stdout and shown.returncode == 0
    wrong = run(f"tinker_cookbook.recipes.{recipe}", "lerning_rate=1")
    assert "Did you mean 'learning_rate'?" in wrong.stdout + wrong.stderr and wrong.returncode == 1
    assert "Traceback" not in wrong.stderr


def test_a_recipe_run_as_a_module_names_the_extra_of_a_missing_package(tmp_path: Path) -> None:
    (tmp_path / "chz.py").write_text("raise ModuleNotFoundError(\"No module named 'chz'\", name='chz')\n")
    done = run("tinker_cookbook.recipes.math_rl.train", paths=str(tmp_path))
    assert done.stderr == "refused: chz is not installed; pip install 'rock-tinker[cookbook]' brings it\n"
    assert done.returncode == 2


def test_what_the_server_refuses_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["recipe"])
    answer = httpx.Response(400, request=httpx.Request("POST", "http://server/create_model"))
    body = {"detail": "base_model 'x' is not served here; known: y"}
    with pytest.raises(SystemExit) as ended, entry.faults_in_one_line():
        raise tinker.BadRequestError(f"Error code: 400 - {body}", answer, body)
    assert ended.value.code == "refused by the server: base_model 'x' is not served here; known: y"
    with pytest.raises(SystemExit) as ended, entry.faults_in_one_line():
        raise tinker.AuthenticationError("", answer, {"detail": "the API key is not known"})
    assert ended.value.code == "refused by the server: the API key is not known; set TINKER_API_KEY"
    with pytest.raises(tinker.InternalServerError), entry.faults_in_one_line():
        raise tinker.InternalServerError("Error code: 500", answer, None)


def test_ctrl_c_ends_a_program_that_waits_for_a_person() -> None:
    program = "import asyncio\nfrom tinker_cookbook import cli_utils\nasyncio.run(cli_utils.ask('> '))"
    terminal, end = pty.openpty()
    child = subprocess.Popen([sys.executable, "-c", program], stdin=end, stdout=end, stderr=end)
    os.close(end)
    try:
        assert select.select([terminal], [], [], 60)[0] and os.read(terminal, 100) == b"> "
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == -signal.SIGINT
    finally:
        child.kill()
        os.close(terminal)


@pytest.mark.parametrize(
    ("number", "code", "word", "background"),
    [
        (signal.SIGINT, 130, "interrupted", False),
        (signal.SIGTERM, 143, "terminated", False),
        (signal.SIGTERM, 143, "terminated", True),
    ],
)
def test_a_stopped_recipe_says_how_to_go_on(
    number: signal.Signals,
    code: int,
    word: str,
    background: bool,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    @chz.chz
    class Config:
        log_path: str | None = None
        behavior_if_log_dir_exists: str = "ask"
        save_every: int = 20

    closed = []

    async def main(config: Config) -> None:
        try:
            signal.raise_signal(number)
            await asyncio.sleep(60)
        finally:
            closed.append(config.log_path)

    folder = tmp_path / "a"
    monkeypatch.setattr(entry, "_folders", [])
    monkeypatch.setattr(sys, "argv", ["recipe", f"log_path={folder}"])
    main.__annotations__["config"] = Config
    before = signal.getsignal(signal.SIGTERM)
    interrupts = signal.SIG_IGN if background else signal.default_int_handler  # a script's background ignores SIGINT
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, interrupts)))
    for said in (
        f"nothing was written to {folder} yet",
        f"{folder} has no checkpoint yet: the same command with behavior_if_log_dir_exists=delete begins again",
        f"log_path={folder} behavior_if_log_dir_exists=resume goes on from checkpoint 000003",
    ):
        with pytest.raises(SystemExit) as ended:
            entry.run(main)
        assert ended.value.code == code and capsys.readouterr().err.splitlines() == [said, word]
        row = {"name": "000003", "batch": 3, "state_path": "tinker://r/weights/000003"}
        if folder.is_dir():
            (folder / "checkpoints.jsonl").write_text(json.dumps(row) + "\n")
        folder.mkdir(exist_ok=True)
    assert closed == [str(folder)] * 3 and signal.getsignal(signal.SIGTERM) == before
    assert signal.getsignal(signal.SIGINT) == interrupts


def test_the_folder_that_a_run_has_chosen_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @chz.chz
    class Config:
        model_name: str = "org/m"
        log_path: str | None = None

    monkeypatch.setattr(entry, "_folders", [])
    monkeypatch.setenv("TINKER_COOKBOOK_RUNS_DIR", str(tmp_path))
    chosen = entry.run_folder(Config(), "recipe")
    assert entry._folders == [chosen]
    (Path(chosen) / "sft").mkdir(parents=True)
    assert entry.how_to_go_on(chosen, given=False).endswith("has no checkpoint yet: the same command begins again")
    (Path(chosen) / "sft" / "checkpoints.jsonl").write_text("")
    assert entry.how_to_go_on(chosen).endswith(" behavior_if_log_dir_exists=resume goes on from the last checkpoint")
    assert entry.how_to_go_on(chosen, asks=False) == f"log_path={chosen} goes on from the last checkpoint"


def run(module: str, *arguments: str, paths: str = "") -> subprocess.CompletedProcess[str]:
    """A module as a program, as outside of pytest: chz looks for that."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (paths, os.environ.get("PYTHONPATH"))))
    program = [sys.executable, "-m", module, *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=120, env=environment)
