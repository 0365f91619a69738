"""The public surface: names, fields, arguments and defaults, except what docs/cookbook/differences.md lists with a
reason."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinker_cookbook import cli_utils, renderers
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.sandbox import SandboxBackend

ROOT = Path(__file__).parents[2]
FACTS = Path(__file__).parent / "data" / "facts.txt"
RECIPE_SETTINGS = Path(__file__).parent / "data" / "recipe_settings.txt"
DIFFERENCES = ROOT / "docs" / "cookbook" / "differences.md"
PACKAGE = ROOT / "rock-tinker" / "src" / "tinker_cookbook"


def section(title: str) -> str:
    """Text of a section of the page of differences."""
    return DIFFERENCES.read_text().split(f"## {title}\n")[1].split("\n## ")[0]


def listed(title: str) -> set[tuple[str, str]]:
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \| .+ \|$", section(title), flags=re.MULTILINE)
    return {(module, name) for module, names in rows for name in re.findall(r"`([^`]+)`", names)}


@pytest.fixture(scope="module")
def facts() -> Any:
    """``surface_facts``, the file beside this one, which has no package around it."""
    spec = importlib.util.spec_from_file_location("surface_facts", Path(__file__).parent / "surface_facts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_missing_or_called_in_another_way_is_listed_with_a_reason_and_nothing_else_is(facts: Any) -> None:
    theirs = facts.read(FACTS)
    assert sum(len(rows) for rows in theirs.values()) > 1100
    missing, changed = facts.compare(theirs, facts.facts_here(theirs))
    assert missing == {(module.replace("/", "."), name) for module, name in listed("Names")}
    assert changed == {(module.replace("/", "."), name) for module, name in listed("Signatures")}


@pytest.mark.parametrize(
    ("theirs", "mine", "missing", "changed"),
    [
        ("function | a | b = 1", "function | a | b = 1 | c = 2", set(), set()),
        ("function | a | b = 1", "function | a | b = 2", set(), {"f(b)"}),
        ("function | a | b = 1", "function | b = 1 | a", set(), {"f(a)", "f(b)"}),
        ("function | a | b = 1", "function | a | *b = 1", set(), {"f(b)"}),
        ("function | a", "function | a | c", set(), {"f(c)"}),
        ("function | a | b = 1", "function | a", {"f(b)"}, set()),
        ("async function | a", "function | a", set(), {"f"}),
        ("function | a | args rest | kwargs more", "function | a", set(), set()),
        ("function | *a | kwargs more", "function | *a", {"f(more)"}, set()),
        ("constant | 1", "constant | 2", set(), {"f"}),
        ("class | A | B", "class | A", set(), {"f(B)"}),
    ],
)
def test_the_comparison_sees_what_would_break_a_caller(
    facts: Any, theirs: str, mine: str, missing: set[str], changed: set[str]
) -> None:
    found = facts.compare({"m": {"f": theirs.split(" | ")}}, {"m": {"f": mine.split(" | ")}})
    assert found == ({("m", name) for name in missing}, {("m", name) for name in changed})


def split_settings(text: str) -> list[tuple[str, str]]:
    """Names and values of ``a=1; b=f(2)``."""
    return [(name, value) for name, value in (part.split("=", 1) for part in re.split(r"; (?=\w+=)", text))]


def recipe_differences() -> tuple[set[tuple[str, str]], set[str]]:
    """(recipe, setting) whose default is another one or that is missing, and recipes that are not there."""
    recipe, module, other, absent = "", None, set(), set()
    for line in RECIPE_SETTINGS.read_text().splitlines():
        heading = re.match(r"## (\S+)\.py", line)
        if heading:
            recipe = heading.group(1).replace("/", ".")
            exists = (PACKAGE / "recipes" / f"{heading.group(1)}.py").is_file()
            module = importlib.import_module(f"tinker_cookbook.recipes.{recipe}") if exists else None
            absent |= set() if exists else {recipe}
            continue
        declared = re.match(r" +(\w+) : (.+)$", line)
        if declared is None or module is None:
            continue
        fields = getattr(module, declared.group(1)).__chz_fields__
        known = {"cli_utils": cli_utils, "renderers": renderers, "TrainOnWhat": TrainOnWhat}
        for name, value in split_settings(declared.group(2)):
            wanted = eval(value, {**vars(module), **known, "SandboxBackend": SandboxBackend})
            made = getattr(wanted, "_default_factory", None)
            if name not in fields or (
                fields[name]._default_factory is not made if made else fields[name]._default != wanted
            ):
                other.add((recipe, name))
    return other, absent


def test_every_recipe_has_the_same_settings_and_defaults() -> None:
    other, absent = recipe_differences()
    assert other == listed("Settings of recipes")
    text = section("Settings of recipes").split("Recipes that are not there")[1].split("They need")[0]
    named = set(re.findall(r"`([\w.]+)`", text))
    uncovered = {r for r in absent if not any(r == name or r.startswith(f"{name}.") for name in named)}
    assert not uncovered
    assert not {name for name in named if not any(r == name or r.startswith(f"{name}.") for r in absent)}


def test_the_comparison_of_settings_reads_all_of_them() -> None:
    rows = [line for line in RECIPE_SETTINGS.read_text().splitlines() if line.startswith("   ")]
    settings = [name for row in rows for name, _ in split_settings(row.split(" : ", 1)[1])]
    assert len(rows) >= 40 and len(settings) > 700 and all(name.isidentifier() for name in settings)


def test_importing_the_package_takes_less_than_a_second() -> None:
    code = "import time; t=time.time(); import tinker_cookbook; print(time.time()-t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) < 1.0


@pytest.mark.parametrize("module", ["rl.train", "supervised.train", "renderers"])
def test_heavy_packages_are_loaded_only_when_needed(module: str) -> None:
    code = f"import sys, tinker_cookbook.{module}; print([m for m in ('torch','transformers','datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_no_module_is_longer_than_500_lines() -> None:
    long = {
        str(p.relative_to(PACKAGE)): n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 500
    }
    assert not long


DEFAULTS: dict[str, dict[str, Any]] = {
    "rl.train:Config": {
        "eval_every": 20,
        "save_every": 20,
        "loss_fn": "importance_sampling",
        "num_substeps": 1,
        "lora_rank": 32,
        "temperature": 1.0,
        "kl_penalty_coef": 0.0,
        "compute_post_kl": False,
        "remove_constant_reward_groups": False,
        "ttl_seconds": 604800,
        "rolling_save_every": 0,
        "rolling_ttl_seconds": 7200,
        "num_groups_to_log": 4,
        "rollout_json_export": True,
        "num_epochs": 1,
        "kl_discount_factor": 0.0,
        "kl_reference_config": None,
        "loss_fn_config": None,
        "rollout_error_tolerance": None,
        "async_config": None,
        "stream_minibatch_config": None,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_eps": 1e-8,
    },
    "supervised.train:Config": {
        "learning_rate": 1e-4,
        "lr_schedule": "linear",
        "num_epochs": 1,
        "lora_rank": 32,
        "save_every": 20,
        "eval_every": 10,
        "infrequent_eval_every": 100,
        "ttl_seconds": 604800,
        "rolling_save_every": 0,
        "rolling_ttl_seconds": 7200,
        "save_every_tokens": 0,
        "save_every_seconds": 0.0,
        "async_periodic_saves": False,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_eps": 1e-8,
        "submit_ahead": 1,
    },
    "preference.train_dpo:Config": {"learning_rate": 1e-5, "dpo_beta": 0.1, "lora_rank": 32},
    "distillation.sdft:Config": {"topk": 20, "reverse": False, "teacher_sync_every": None, "skip_first_n_tokens": 3},
    "distillation.train_on_policy:Config": {"kl_penalty_coef": 1.0, "kl_discount_factor": 0.0},
    "distillation.train_off_policy:Config": {"n_teacher_targets": 20},
}


@pytest.mark.parametrize("path", sorted(DEFAULTS))
def test_defaults_are_the_documented_ones(path: str) -> None:
    module, name = path.split(":")
    fields = getattr(importlib.import_module(f"tinker_cookbook.{module}"), name).__chz_fields__
    assert {key: fields[key]._default for key in DEFAULTS[path]} == DEFAULTS[path]


def test_the_parameters_of_the_library_have_their_documented_defaults() -> None:
    from tinker_cookbook import checkpoint_utils
    from tinker_cookbook.rl.problem_env import ProblemEnv
    from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits, TerminationRewardPolicy
    from tinker_cookbook.rl.rollout_presets import agentic, simple
    from tinker_cookbook.rl.rollout_strategy import MinViableGroup, RetryOnFailure
    from tinker_cookbook.supervised.data import conversation_to_datum

    def default(function: Any, name: str) -> Any:
        return inspect.signature(function).parameters[name].default

    assert default(ProblemEnv.__init__, "format_coef") == 0.1
    assert default(checkpoint_utils.get_last_checkpoint, "required_key") == "state_path"
    assert default(conversation_to_datum, "reduction") == "mean"
    assert default(renderers.Renderer.build_supervised_example, "train_on_what") == TrainOnWhat.LAST_ASSISTANT_MESSAGE
    assert RetryOnFailure().max_retries == 3 and MinViableGroup().min_successful is None  # three quarters, rounded up
    assert (simple().limits, simple().parse_errors, simple().termination) == (RolloutLimits(), None, None)
    assert ParseErrorPolicy().max_consecutive == 0
    chosen = agentic()
    assert chosen.limits == RolloutLimits(max_turns=10, max_trajectory_tokens=65536, max_tool_calls=30)
    assert (
        chosen.parse_errors is not None
        and chosen.parse_errors.max_consecutive == 2
        and chosen.tool_execution == "sequential"
    )
    assert chosen.termination == TerminationRewardPolicy(
        zero_reward_on_limit=True, skip_grading_on_timeout=True, grader_timeout_seconds=900
    )
