"""The commands that the pages give for recipes: recipes and settings exist, values are accepted, figures stand beside them."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chz
import pytest

from tinker_cookbook import cli, model_info, renderers
from tinker_cookbook.recipes.chat_sl.sweep.cli import sweep_config
from tinker_cookbook.utils.config_fields import field_names

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "rock-tinker" / "src" / "tinker_cookbook" / "recipes"
PAGES = [
    *RECIPES.rglob("README.md"),
    ROOT / "README.md",
    ROOT / "rock-tinker" / "README.md",
    *(ROOT / "docs").rglob("*.md"),
]
SWE = {"ppo", "ppo_kl", "grpo", "eval_swe_bench"}
"""Recipes with options of argparse."""
WITHOUT_FIGURES = {"swe", "vlm_classifier"}


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """(page, recipe, settings) of every command of a page that gives settings."""
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        for line in lines:
            for module, tail in re.findall(
                r"(?:python -m tinker_cookbook\.recipes\.|tinker-cookbook recipe )([\w.]+)([^`&|]*)", line
            ):
                words = [
                    word for word in shlex.split(tail, comments=True) if word not in ("--help", "...", "key=value")
                ]
                if module in SWE or module == "list":
                    continue
                name = module.removesuffix(".cli") if module.endswith("sweep.cli") else module
                yield str(page.relative_to(ROOT)), name, words


COMMANDS = sorted({(page, name, " ".join(words)) for page, name, words in commands()})


def configuration(recipe: str, words: list[str]) -> Any:
    """What the recipe makes of its settings."""
    if recipe == "chat_sl.sweep":
        return chz.Blueprint(sweep_config("chat_sl")).make_from_argv(words)
    module = importlib.import_module(f"tinker_cookbook.recipes.{cli.resolve_recipe(recipe)}")
    if hasattr(module, "build_config_blueprint"):
        return module.build_config_blueprint().make_from_argv(words)
    main = getattr(module, "cli_main", None) or module.main
    parameter = next(iter(inspect.signature(main, eval_str=True).parameters.values()))
    return chz.Blueprint(parameter.annotation).make_from_argv(words)


def test_the_pages_give_commands_for_nearly_all_recipes() -> None:
    assert len(COMMANDS) > 35
    given = {"chat_sl.sweep.cli" if name == "chat_sl.sweep" else cli.resolve_recipe(name) for _, name, _ in COMMANDS}
    left_out = set(cli.recipe_names()) - given - SWE
    assert left_out <= {
        "distillation.off_policy_reasoning", "distillation.on_policy_multi_teacher", "rl_basic", "rubric.generate_data",
        "sl_basic", "rl_loop", "vlm_classifier.train", "sl_loop",
    }, left_out  # fmt: skip


@pytest.mark.parametrize(("page", "recipe", "words"), COMMANDS)
def test_a_command_of_a_page_is_accepted(page: str, recipe: str, words: str) -> None:
    config = configuration(recipe, words.split())
    config = getattr(config, "base", config)
    for model, renderer in (
        ("model_name", "renderer_name"),
        ("base_model", "renderer_name"),
        ("grader_llm_name", "grader_renderer_name"),
    ):
        if {model, renderer} <= field_names(type(config)):
            name = getattr(config, renderer) or model_info.get_recommended_renderer_name(getattr(config, model))
            assert name in renderers.builtin_renderer_names(), (
                f"{page}: {getattr(config, model)} is rendered with {name}"
            )


@pytest.mark.parametrize(
    "folder", sorted(str(path.parent.relative_to(RECIPES)) for path in RECIPES.rglob("*/README.md"))
)
def test_a_recipe_tells_its_commands_what_to_expect_and_how_long_it_takes(folder: str) -> None:
    text = (RECIPES / folder / "README.md").read_text(encoding="utf-8")
    assert f"({folder}/README.md)" in (RECIPES / "README.md").read_text(encoding="utf-8") or folder == "swe"
    if folder in WITHOUT_FIGURES:
        return
    laptop, gpus = text.split("On GPUs:")
    assert "python -m tinker_cookbook.recipes." in laptop and "python -m tinker_cookbook.recipes." in gpus
    assert re.search(r"^\| expected \| .+ \|$", gpus, re.MULTILINE) and re.search(
        r"^\| time \| .+ \|$", gpus, re.MULTILINE
    )
