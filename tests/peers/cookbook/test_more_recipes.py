"""More recipes of the official cookbook, each for two steps: they end well and their figures are numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(300)]
MODEL, BASE = "Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base"
CHATML = {"renderer_name": "qwen3_instruct"}
SHORT: dict[str, Any] = {"eval_every": 0, "save_every": 0, "max_steps": 2}

RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "rl_basic": ("rl_basic", {"model_name": BASE, "max_tokens": 8, "max_steps": 1}),
    "shorter": (
        "preference.shorter.train",
        {
            "model_name": MODEL,
            **CHATML,
            "batch_size": 2,
            "group_size": 4,
            "max_tokens": 8,
            "eval_every": 0,
            "max_steps": 2,
        },
    ),
    "gsm8k": (
        "math_rl.train",
        {
            "model_name": MODEL,
            **CHATML,
            "env": "gsm8k",
            "group_size": 2,
            "groups_per_batch": 4,
            "max_tokens": 8,
            "loss_fn": "importance_sampling",
            **SHORT,
        },
    ),
    "math_rl off policy": (
        "math_rl.train",
        {
            "model_name": MODEL,
            **CHATML,
            "group_size": 4,
            "groups_per_batch": 4,
            "max_steps_off_policy": 1,
            "loss_fn": "cispo",
            "compute_post_kl": True,
            **SHORT,
        },
    ),
    "math_rl off policy in minibatches": (
        "math_rl.train",
        {
            "model_name": MODEL,
            **CHATML,
            "group_size": 4,
            "groups_per_batch": 4,
            "max_steps_off_policy": 1,
            "stream_minibatch_config.groups_per_batch": 4,
            "stream_minibatch_config.num_minibatches": 2,
            "loss_fn": "importance_sampling",
            **SHORT,
        },
    ),
    "on_policy_distillation": (
        "distillation.on_policy_distillation",
        {
            "model_name": BASE,
            **CHATML,
            "teacher_model": MODEL,
            "dataset": "deepmath",
            "groups_per_batch": 2,
            "group_size": 2,
            "max_tokens": 8,
            "lora_rank": 8,
            **SHORT,
        },
    ),
    "dpo": (
        "preference.dpo.train",
        {"model_name": BASE, "dataset": "hhh", **CHATML, "batch_size": 4, "max_length": 256, "max_steps": 2},
    ),
}


@pytest.fixture(scope="session")
def more_data(cookbook_workspace: Path) -> Path:
    """Further small data sets under their names."""
    deepmath = cookbook_workspace / "zwhe99/DeepMath-103K"
    deepmath.mkdir(parents=True, exist_ok=True)
    rows = [{"question": f"What is {n} plus {n}?", "final_answer": str(2 * n), "difficulty": 1.0} for n in range(16)]
    (deepmath / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    harmless = cookbook_workspace / "Anthropic/hh-rlhf"
    harmless.mkdir(parents=True, exist_ok=True)
    pairs = [
        {
            "chosen": f"\n\nHuman: What is {n}?\n\nAssistant: A number.",
            "rejected": f"\n\nHuman: What is {n}?\n\nAssistant: Go away.",
        }
        for n in range(48)
    ]
    for split, part in (("train", pairs[:32]), ("test", pairs[32:])):
        (harmless / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return cookbook_workspace


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_ends_well(name: str, run_recipe: Any, more_data: Path) -> None:
    module, options = RECIPES[name]
    recipe = run_recipe(module, **options)
    assert recipe.metrics
    for row in recipe.metrics:
        for key, value in row.items():
            assert not isinstance(value, float) or math.isfinite(value), (key, value)
    divergence = recipe.column("optim/kl_sample_train_v1")
    print("figures", name, [f"{value:.1e}" for value in divergence])
    assert all(abs(value) < 1e-3 for value in divergence)
