"""What the agent skills mention exists: commands, modules, settings, files, metrics."""

from __future__ import annotations

import functools
import importlib
import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

REPOSITORY = Path(__file__).parents[3]
SKILLS = REPOSITORY / "skills"
PAGES = sorted(SKILLS.rglob("*.md"))
SOURCES = ("rock-tinker/src", "tinker-backend/src", "rock/src")
GROUPS = {
    "tinker": ("tinker.cli", "tinker"),
    "tinker-backend": ("tinker_backend.cli", "main"),
    "tinker-cookbook": ("tinker_cookbook.cli", "main"),
    "rock": ("rock.cli", "_group"),
}
# Python and shell in general, not names of this project.
GENERAL = {
    ".result()", "future.coroutine()", "asyncio.gather", "create_task", "tokenizer.encode", "<|im_end|>", "~/tinker-runs",
}  # fmt: skip


@functools.cache
def source_text() -> str:
    files = [path for folder in SOURCES for path in (REPOSITORY / folder).rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@functools.cache
def settings_names() -> set[str]:
    """Fields of classes, and parameters."""
    return set(re.findall(r"(?m)^ +(\w+): ", source_text())) | set(re.findall(r"\b(\w+): [\w\"]", source_text()))


def spans(page: Path) -> list[str]:
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text)]


def command_group(program: str) -> Any:
    module, name = GROUPS[program]
    return getattr(importlib.import_module(module), name)


def check_click(command: Any, words: list[str]) -> str | None:
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return f"{command.name} has no command {words[0]!r}"
        command, words = found, words[1:]
    options = {name for parameter in command.params for name in parameter.opts}
    wrong = [word for word in words if word.startswith("--") and word not in options and word != "--help"]
    return f"{command.name} has no option {wrong[0]}" if wrong else None


def check_recipe(words: list[str]) -> str | None:
    from tinker_cookbook.cli import resolve_recipe

    if words[0] == "list":
        return None
    module = importlib.import_module(f"tinker_cookbook.recipes.{resolve_recipe(words[0])}")
    config = getattr(module, "CLIConfig", None) or module.Config
    names = set(config.__chz_fields__)
    wrong = [word for word in words[1:] if "=" in word and word.split("=")[0] not in names]
    return f"recipe {words[0]} has no setting {wrong[0]}" if wrong else None


def resolves(dotted: str) -> bool:
    """Whether a dotted name is a module or attribute of the packages."""
    for root in ("", "tinker_cookbook.", "tinker_cookbook.recipes.", "tinker."):
        parts = (root + dotted).split(".")
        for cut in range(len(parts), 0, -1):
            try:
                value: Any = importlib.import_module(".".join(parts[:cut]))
            except ImportError:
                continue
            for name in parts[cut:]:
                value = getattr(value, name, None)
            if value is not None:
                return True
            break
    return False


def fault(span: str) -> str | None:
    """Why a code span is wrong; None when what it names is there."""
    words = span.split()
    program = words[0]
    if span in GENERAL:
        return None
    if program == "tinker-cookbook" and words[1] == "recipe":
        return check_recipe(words[2:])
    if program in GROUPS and len(words) > 1:
        return check_click(command_group(program), words[1:])
    if span.startswith("python -m "):
        return None if resolves(words[2]) else f"no module {words[2]}"
    if span.startswith("bash "):
        return None if all((REPOSITORY / word).exists() for word in words[1:]) else "no such script"
    if "/" in span and (REPOSITORY / span).exists():
        return None
    bare = span.rstrip("=")
    if re.fullmatch(r"\w+=\S*", span):
        return None if span.split("=")[0] in settings_names() else f"no setting {span}"
    if re.fullmatch(r"\w+(\.\w+)+", bare) and not re.search(r"\.(jsonl?|log|diff|yaml|html|py)$", bare):
        return None if resolves(bare) else f"nothing is called {bare}"
    if re.fullmatch(r"[A-Z]\w+", bare) or re.fullmatch(r"\w+", bare):
        known = re.search(rf"\b{bare}\b", source_text()) or bare in {path.parent.name for path in PAGES}
        return None if known else f"{bare} is not in the code"
    if re.fullmatch(r"iteration_\d+/\w+\.html", span):
        return None if "train.html" in span and "iteration_" in source_text() else f"no file {span}"
    if span == "metrics.jsonl.pre_resume_<step>":
        return None if "pre_resume_" in source_text() else "no such file"
    if re.fullmatch(r"[\w.-]+\.(jsonl?|log|diff|yaml)", span):
        return None if span in source_text() else f"no file {span}"
    metric = re.sub(r"^(env/all|test/env/all)/", "", span)
    if "/" in span:
        # The code may put a name together from its parts.
        parts = [part for part in metric.split("/") if part]
        found = all(re.search(rf"(?<![a-z]){part}(?![a-z])", source_text()) for part in parts)
        return None if found else f"no metric {span}"
    return f"{span!r} is of no kind that this test knows"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(SKILLS)))
def test_what_a_page_mentions_exists(page: Path) -> None:
    wrong = {span: why for span in spans(page) if (why := fault(span)) is not None}
    assert not wrong


@pytest.mark.parametrize(
    "span",
    [
        "tinker-backend fly", "tinker-backend doctor --speed", "tinker-cookbook recipe math_rl learning_rat=1",
        "python -m tinker_cookbook.recipes.nothing", "rl.training", "optim/kl_sample_trian", "learning_rat=",
        "NoSuchBuilder", "metric.jsonl", "a b c",
    ],
)  # fmt: skip
def test_the_check_finds_mistakes(span: str) -> None:
    try:
        why = fault(span)
    except click.ClickException as error:
        why = str(error)
    assert why


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(SKILLS)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("folder", ["research", "debug"])
def test_a_skill_has_a_name_and_says_when_to_use_it(folder: str) -> None:
    text = (SKILLS / folder / "SKILL.md").read_text(encoding="utf-8")
    head = yaml.safe_load(text.split("---")[1])
    assert head["name"] == folder and "Use when" in head["description"] and len(head["description"]) <= 1024
    for reference in (SKILLS / folder / "references").glob("*.md"):
        assert f"references/{reference.name}" in text, f"{reference.name} is never mentioned"


def test_the_manifest_leads_to_the_skills() -> None:
    manifest = json.loads((REPOSITORY / ".claude-plugin" / "plugin.json").read_text(encoding="utf-8"))
    assert (REPOSITORY / manifest["skills"] / "research" / "SKILL.md").is_file()
