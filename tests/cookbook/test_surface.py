"""The public surface: names, fields, arguments and defaults, except what docs/cookbook/differences.md lists with a
reason."""

from __future__ import annotations

import importlib
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
SURFACE = Path(__file__).parent / "data" / "surface.txt"
RECIPE_SETTINGS = Path(__file__).parent / "data" / "recipe_settings.txt"
DIFFERENCES = ROOT / "docs" / "cookbook" / "differences.md"
PACKAGE = ROOT / "rock-tinker" / "src" / "tinker_cookbook"
# Folders of the list whose modules are laid out anew or left out as a whole; the page says so.
LEFT_OUT = (
    "audio_processing_utils",
    "capture/",
    "inference/",
    "scripts/",
    "third_party/",
    "xmux/",
    "weights/_",
    "eval/benchmarks/",
    "eval/custom_",
    "eval/inspect_",
    "eval/run_inspect",
    "sandbox/modal_sandbox",
    "stores/_incremental",
    "utils/deprecation",
    "renderers/deepseek",
    "renderers/glm",
    "renderers/gpt_oss",
    "renderers/kimi",
    "renderers/llama3",
    "renderers/nemotron3",
    "renderers/qwen3",
    "renderers/role_colon",
    "renderers/testing_utils",
    "renderers/tml",
    "_version",
)


def missing_of(module: str, line: str) -> list[str]:
    """Names of one line of the list that the module lacks."""
    target: Any = importlib.import_module("tinker_cookbook." + module.replace("/", ".").removesuffix(".__init__"))
    declared = re.match(r"class (\w+)\(.*?\) fields\[(.*?)\] methods\[(.*?)\]", line)
    if declared:
        found = getattr(target, declared.group(1), None)
        if found is None:
            return [declared.group(1)]
        names = set(dir(found)) | set(inspect.signature(found.__init__).parameters)
        for base in found.__mro__:
            names |= set(getattr(base, "__annotations__", {})) | set(getattr(base, "__chz_fields__", {}))
        if "str" in {base.__name__ for base in found.__mro__}:
            names |= set(vars(found))
        wanted = [name for name in f"{declared.group(2)},{declared.group(3)}".split(",") if name]
        return [f"{declared.group(1)}.{name}" for name in wanted if name not in names]
    function = re.match(r"(?:async )?(\w+)\((.*)\)$", line)
    if not function:
        return []
    found = getattr(target, function.group(1), None)
    if found is None:
        return [function.group(1)]
    wanted = [name.strip().lstrip("*") for name in function.group(2).split(",") if name.strip() not in ("", "*")]
    have = list(inspect.signature(found).parameters)
    return [f"{function.group(1)}({name})" for name in wanted if name not in have]


def all_missing() -> set[tuple[str, str]]:
    module, out = "", set()
    for raw in SURFACE.read_text().splitlines():
        heading = re.match(r"## (\S+)\.py", raw)
        if heading:
            module = heading.group(1)
        elif raw.strip() and not module.startswith(LEFT_OUT):
            out |= {(module, name) for name in missing_of(module, raw.strip())}
    return out


def section(title: str) -> str:
    """Text of a section of the page of differences."""
    return DIFFERENCES.read_text().split(f"## {title}\n")[1].split("\n## ")[0]


def listed(title: str) -> set[tuple[str, str]]:
    rows = re.findall(r"^\| `([^`]+)` \| (.+?) \| .+ \|$", section(title), flags=re.MULTILINE)
    return {(module, name) for module, names in rows for name in re.findall(r"`([^`]+)`", names)}


def test_every_missing_name_is_listed_with_a_reason_and_nothing_else_is() -> None:
    assert all_missing() == listed("Names")


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
            if name not in fields or fields[name]._default != wanted:
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
