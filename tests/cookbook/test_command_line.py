"""The command ``tinker-cookbook``: what it says when something is missing or wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tinker_cookbook import cli


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
        assert done.exit_code == 1
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
    program = [sys.executable, "-m", "tinker_cookbook.cli", *command]
    assert key in subprocess.run(program, capture_output=True, text=True, timeout=120).stdout
