"""Every recipe without a package that it needs: one sentence with the command that brings it, exit code 2, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinker_cookbook import cli

SWE = ("ppo", "ppo_kl", "grpo", "eval_swe_bench")
"""Recipes that need none of these packages before a task is run."""
RECIPES = [name for name in cli.recipe_names() if name not in SWE]
FROM_THE_HUB = {
    "chat_sl.train": "",
    "code_rl.train": "",
    "distillation.off_policy_reasoning": "",
    "distillation.on_policy_distillation": "",
    "distillation.on_policy_multi_teacher": "",
    "math_rl.train": "env=gsm8k",
    "preference.dpo.train": "",
    "preference.rlhf.rlhf_pipeline": "",
    "rl_basic": "",
    "rl_loop": "",
    "rl_numerics_check.train": "",
    "sdft.train": "",
    "sl_basic": "",
    "sl_loop": "",
}
"""Recipes whose data come from the hub, and the setting that asks for them if it is not the default."""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment of a program outside of pytest; no server, no hub."""
    for name in [name for name in os.environ if name.startswith(("PYTEST", "TINKER_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("TINKER_COOKBOOK_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def without(package: str, folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """A program for which a package is not installed."""
    text = f"raise ModuleNotFoundError(\"No module named '{package}'\", name='{package}')\n"
    (folder / "blocked").mkdir()
    (folder / "blocked" / f"{package}.py").write_text(text)
    paths = filter(None, (str(folder / "blocked"), os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    program = [sys.executable, "-m", *command]
    return subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def check(done: subprocess.CompletedProcess[str], *said: str) -> None:
    output = done.stdout + done.stderr
    assert done.returncode == 2 and "Traceback" not in output, output[-2000:]
    last = done.stderr.splitlines()[-1]
    assert last.startswith(("refused: ", "Error: ")) and all(text in last for text in said), last


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_recipe_runs_without_its_settings_package(recipe: str, tmp_path: Path) -> None:
    done = without("chz", tmp_path, [f"tinker_cookbook.recipes.{recipe}", "max_steps=1"])
    check(done, "chz is not installed; pip install 'rock-tinker[cookbook]'")
    assert len(done.stderr.splitlines()) == 1 and not done.stdout


def settings(recipe: str, tokenizer: str) -> list[str]:
    model = "base_model" if recipe == "preference.rlhf.rlhf_pipeline" else "model_name"
    return [f"{model}={tokenizer}", "renderer_name=qwen3_instruct", "log_path=run"]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sorted(FROM_THE_HUB))
def test_recipes_with_data_from_the_hub_name_the_package_that_fetches_them(
    recipe: str, universal_tokenizer_path: str, tmp_path: Path
) -> None:
    assert recipe in RECIPES
    words = [*settings(recipe, universal_tokenizer_path), *filter(None, [FROM_THE_HUB[recipe]])]
    done = without("datasets", tmp_path, [f"tinker_cookbook.recipes.{recipe}", *words])
    check(done, "datasets is not installed; pip install 'rock-tinker[recipes]'")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "recipe", "setting", "said"),
    [
        ("wandb", "math_rl.train", "wandb_project=x", "pip install wandb"),
        ("wandb", "sl_loop", "wandb_project=x", "pip install wandb"),
        ("transformers", "multiplayer_rl.guess_number.train", "", "pip install 'rock-tinker[cookbook]'"),
        ("torch", "preference.dpo.train", "dataset=example", "pip install 'rock-tinker[weights]'"),
        ("torch", "sdft.train", "reverse=true", "pip install 'rock-tinker[weights]'"),
        ("mlflow", "math_rl.train", "TINKER_COOKBOOK_LOGGERS=mlflow", "pip install mlflow"),
        ("tensorboard", "math_rl.train", "TINKER_COOKBOOK_LOGGERS=tensorboard", "pip install tensorboard"),
    ],
)
def test_packages_that_a_setting_needs_are_missed_before_a_server_is_asked(
    package: str,
    recipe: str,
    setting: str,
    said: str,
    universal_tokenizer_path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = settings(recipe, universal_tokenizer_path)
    if recipe in ("preference.dpo.train", "sdft.train"):
        words += ["dataset=example", "batch_size=4"] if "dpo" in recipe else ["dataset=example", "groups_per_batch=2"]
    if setting.startswith("TINKER_"):
        monkeypatch.setenv(*setting.split("="))
    elif setting and setting not in words:
        words.append(setting)
    check(without(package, tmp_path, [f"tinker_cookbook.recipes.{recipe}", *words]), package, said)
    assert not (tmp_path / "run" / "checkpoints.jsonl").exists()


def test_the_command_says_the_same(tmp_path: Path) -> None:
    done = without("chz", tmp_path, ["tinker_cookbook.cli", "recipe", "math_rl", "max_steps=1"])
    check(done, "chz is not installed; pip install 'rock-tinker[cookbook]'")
