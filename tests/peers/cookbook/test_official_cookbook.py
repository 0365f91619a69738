"""Recipes of the official cookbook, as they are, train against this server."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.timeout(600)]
MODEL, BASE = "Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Base"
KL_LIMIT = 1e-3


def check_policy_metrics(recipe: Any, steps: int) -> None:
    """Sampler and trainer agree, and every number is one."""
    divergence = recipe.column("optim/kl_sample_train_v1")
    assert len(divergence) >= steps
    assert max(map(abs, divergence)) < KL_LIMIT
    assert max(recipe.column("optim/kl_sample_train_v2")) < KL_LIMIT
    assert min(recipe.column("optim/entropy")) > 0
    for row in recipe.metrics:
        for key, value in row.items():
            assert not isinstance(value, float) or math.isfinite(value), (key, value)
    rewards = recipe.column("env/all/reward/total")
    print("figures", [f"{value:.1e}" for value in divergence], [round(value, 3) for value in rewards])


CHAT: dict[str, Any] = {
    "model_name": MODEL,
    "renderer_name": "qwen3_instruct",
    "dataset": "chats.jsonl",
    "batch_size": 16,
    "max_length": 256,
    "learning_rate": 5e-3,
    "lr_schedule": "constant",
    "lora_rank": 8,
    "eval_every": 0,
    "save_every": 0,
}


@pytest.fixture(scope="module")
def chat_run(run_recipe: Any) -> Any:
    """A finished chat_sl on the file of chats."""
    return run_recipe("chat_sl.train", **CHAT, num_epochs=4)


def test_chat_sl_learns_a_file_and_a_new_run_loads_its_checkpoint(run_recipe: Any, chat_run: Any) -> None:
    losses = chat_run.column("train_mean_nll")
    assert losses[-1] < losses[0] / 2
    loaded = run_recipe("chat_sl.train", **CHAT, load_checkpoint_path=state_of(chat_run), max_steps=2)
    continued = loaded.column("train_mean_nll")
    print("figures", losses, continued)
    assert continued[0] < (losses[0] + losses[-1]) / 2


def state_of(recipe: Any) -> str:
    """The training checkpoint at the end of a recipe."""
    return str(recipe.checkpoints[-1]["state_path"])


@pytest.mark.nightly  # about three minutes, and whether groups are mixed is left to chance
@pytest.mark.parametrize(
    "options",
    [
        {"loss_fn": "importance_sampling"},
        {"loss_fn": "ppo", "num_substeps": 2},
        {"loss_fn": "stable_reinforce"},
    ],
    ids=lambda options: options["loss_fn"],
)
def test_math_rl_trains_on_sums(run_recipe: Any, chat_run: Any, options: dict[str, Any]) -> None:
    """From the chats' checkpoint, half trained: some answers end in time, others do not, so that groups are mixed."""
    recipe = run_recipe(
        "math_rl.train",
        model_name=MODEL,
        renderer_name="qwen3_instruct",
        env="arithmetic",
        group_size=8,
        groups_per_batch=8,
        max_tokens=12,
        max_steps=2,
        eval_every=0,
        save_every=1,
        learning_rate=1e-5,
        lora_rank=8,
        load_checkpoint_path=state_of(chat_run),
        **options,
    )
    check_policy_metrics(recipe, 2)
    assert recipe.column("env/all/total_episodes")[:2] == [64, 64]
    print("mixed groups", recipe.column("env/all/by_group/frac_mixed"))
    assert max(recipe.column("env/all/by_group/frac_mixed")) > 0
    assert state_of(recipe).startswith("tinker://")


def test_guess_number_trains_over_several_turns(run_recipe: Any) -> None:
    recipe = run_recipe(
        "multiplayer_rl.guess_number.train",
        model_name=MODEL,
        renderer_name="qwen3_instruct",
        group_size=2,
        batch_size=2,
        max_tokens=8,
        max_steps=2,
        eval_every=0,
        save_every=0,
    )
    check_policy_metrics(recipe, 2)
    assert max(recipe.column("env/all/turns_per_episode")) > 1


def test_sl_loop_trains_on_a_local_data_set(run_recipe: Any) -> None:
    recipe = run_recipe(
        "sl_loop", model_name=BASE, batch_size=8, max_length=256, save_every=2, lora_rank=8, max_steps=3
    )
    losses = recipe.column("train_mean_nll")
    print("figures", losses)
    assert len(losses) == 3 and all(0 < value < 20 for value in losses)


@pytest.mark.parametrize("loss", ["importance_sampling", pytest.param("stable_reinforce", marks=pytest.mark.nightly)])
def test_rl_loop_trains_on_a_local_data_set(run_recipe: Any, loss: str) -> None:
    recipe = run_recipe(
        "rl_loop",
        model_name=BASE,
        batch_size=4,
        group_size=2,
        max_tokens=16,
        save_every=1,
        lora_rank=8,
        loss_fn=loss,
        max_steps=2,
    )
    print("figures", recipe.metrics)
    assert len(recipe.metrics) == 2
