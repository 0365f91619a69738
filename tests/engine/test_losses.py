"""Losses against formulas written again in numpy, with gradients from central differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tinker_backend.loss_catalog import LOSSES
from tinker_backend.runtime.losses import LOSS_FUNCTIONS, POSITION_LOCAL

N = 24
Formula = Callable[[np.ndarray, dict[str, np.ndarray], dict[str, float]], float]


def clipped(r: np.ndarray, i: dict[str, np.ndarray], low: float, high: float) -> float:
    return -float(np.minimum(r * i["advantages"], np.clip(r, low, high) * i["advantages"]).sum())


def numpy_ppo(lp: np.ndarray, i: dict[str, np.ndarray], c: dict[str, float]) -> float:
    return clipped(np.exp(lp - i["logprobs"]), i, c["clip_low_threshold"], c["clip_high_threshold"])


ORACLES: dict[str, Formula] = {
    "cross_entropy": lambda lp, i, c: -float((i["weights"] * lp).sum()),
    "importance_sampling": lambda lp, i, c: -float((np.exp(lp - i["logprobs"]) * i["advantages"]).sum()),
    "ppo": numpy_ppo,
    "dro": lambda lp, i, c: -float((lp * i["advantages"] - c["beta"] / 2 * (lp - i["logprobs"]) ** 2).sum()),
}


def example(seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    lp = -2 + rng.standard_normal(N)
    inputs = {
        "weights": rng.standard_normal(N),
        "logprobs": lp + 0.5 * rng.standard_normal(N),
        "advantages": rng.standard_normal(N),
        "sequence_ratio_mask": (rng.random(N) > 0.4).astype(np.float64),
    }
    return lp, inputs


def evaluate(name: str, lp: np.ndarray, inputs: dict[str, np.ndarray], **config: float) -> tuple[float, np.ndarray]:
    leaf = torch.tensor(lp, dtype=torch.float64, requires_grad=True)
    full = {**LOSSES[name].config, **config}
    loss = LOSS_FUNCTIONS[name](leaf, {k: torch.tensor(v, dtype=torch.float64) for k, v in inputs.items()}, full)
    loss.backward()
    assert leaf.grad is not None
    return float(loss.detach()), leaf.grad.numpy()


def differences(formula: Callable[[np.ndarray], float], lp: np.ndarray) -> np.ndarray:
    step = 1e-6
    grad = np.zeros_like(lp)
    for i in range(len(lp)):
        up, down = lp.copy(), lp.copy()
        up[i] += step
        down[i] -= step
        grad[i] = (formula(up) - formula(down)) / (2 * step)
    return grad


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ORACLES)
def test_value_and_gradient_equal_the_formula(name: str, seed: int) -> None:
    lp, inputs = example(seed)
    config = {k: float(v) for k, v in LOSSES[name].config.items()}
    loss, grad = evaluate(name, lp, inputs)
    assert loss == pytest.approx(ORACLES[name](lp, inputs, config), abs=1e-10)
    np.testing.assert_allclose(grad, differences(lambda x: ORACLES[name](x, inputs, config), lp), atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_cispo_weights_the_logprob_with_a_frozen_clipped_ratio(seed: int) -> None:
    lp, inputs = example(seed)
    ratio = np.exp(lp - inputs["logprobs"])
    frozen = np.clip(ratio, 0.9, 1.3)
    loss, grad = evaluate("cispo", lp, inputs, clip_low_threshold=0.9, clip_high_threshold=1.3)
    assert loss == pytest.approx(-(frozen * lp * inputs["advantages"]).sum(), abs=1e-10)
    np.testing.assert_allclose(grad, -frozen * inputs["advantages"], atol=1e-12)
    assert (ratio != frozen).any()


@pytest.mark.parametrize("seed", range(3))
def test_gspo_uses_one_ratio_for_the_sequence_and_token_gradients(seed: int) -> None:
    lp, inputs = example(seed)
    mask, advantages = inputs["sequence_ratio_mask"], inputs["advantages"]
    ratio = np.exp(((lp - inputs["logprobs"]) * mask).sum() / mask.sum())
    low, high = ratio * 0.99, ratio * 1.01
    loss, grad = evaluate("gspo", lp, inputs, clip_low_threshold=low, clip_high_threshold=high)
    assert loss == pytest.approx(-(ratio * advantages).sum(), abs=1e-10)
    np.testing.assert_allclose(grad, -ratio * advantages, atol=1e-10)
    clipped_loss, clipped_grad = evaluate("gspo", lp, inputs, clip_low_threshold=0.0, clip_high_threshold=ratio / 2)
    expected = -np.minimum(ratio * advantages, ratio / 2 * advantages)
    assert clipped_loss == pytest.approx(expected.sum(), abs=1e-10)
    np.testing.assert_allclose(clipped_grad, np.where(advantages > 0, 0.0, -ratio * advantages), atol=1e-10)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo"])
def test_on_policy_the_gradient_is_that_of_advantage_weighted_logprobs(name: str) -> None:
    lp, inputs = example(0)
    _, grad = evaluate(name, lp, inputs | {"logprobs": lp})
    np.testing.assert_allclose(grad, -inputs["advantages"], atol=1e-12)


def test_dro_without_penalty_is_the_policy_gradient() -> None:
    lp, inputs = example(0)
    _, grad = evaluate("dro", lp, inputs, beta=0.0)
    np.testing.assert_allclose(grad, -inputs["advantages"], atol=1e-12)


def test_ppo_takes_thresholds_token_by_token() -> None:
    lp, inputs = example(1)
    low, high = np.full(N, 0.8), np.full(N, 1.2)
    whole, _ = evaluate("ppo", lp, inputs)
    per_token, _ = evaluate("ppo", lp, inputs | {"clip_low_threshold": low, "clip_high_threshold": high})
    assert whole == per_token
    high[1::2] = 50.0
    other, _ = evaluate("ppo", lp, inputs | {"clip_low_threshold": low, "clip_high_threshold": high})
    assert other != whole


@pytest.mark.parametrize("name", sorted(POSITION_LOCAL))
def test_a_position_local_loss_is_the_sum_over_any_split(name: str) -> None:
    lp, inputs = example(2)
    whole, grad = evaluate(name, lp, inputs)
    parts = [evaluate(name, lp[s], {k: v[s] for k, v in inputs.items()}) for s in (slice(0, 5), slice(5, N))]
    assert whole == pytest.approx(sum(p[0] for p in parts), abs=1e-10)
    np.testing.assert_allclose(grad, np.concatenate([p[1] for p in parts]), atol=1e-12)


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "cispo", "truncated_importance_sampling"])
def test_positions_without_an_advantage_may_hold_any_logprob(name: str) -> None:
    lp, inputs = example(3)
    inputs["advantages"][::2] = 0.0
    loss, grad = evaluate(name, lp, inputs, **({"kl_coeff": 0.0} if name.startswith("truncated") else {}))
    inputs["logprobs"][::2] = -1e4
    wild_loss, wild_grad = evaluate(name, lp, inputs, **({"kl_coeff": 0.0} if name.startswith("truncated") else {}))
    assert wild_loss == loss
    np.testing.assert_array_equal(wild_grad, grad)
    assert (grad[::2] == 0).all() and (grad[1::2] != 0).any()


def test_every_loss_of_the_catalogue_is_computed() -> None:
    assert set(LOSS_FUNCTIONS) == set(LOSSES)


@pytest.mark.parametrize("seed", range(3))
def test_truncated_importance_sampling_freezes_the_cut_ratio_and_pulls_sampled_tokens_alone(seed: int) -> None:
    lp, inputs = example(seed)
    prompt = np.arange(N) < 7
    q, advantages = np.where(prompt, 0.0, inputs["logprobs"]), np.where(prompt, 0.0, inputs["advantages"])
    weight = np.minimum(np.exp(lp - q), 1.1)
    pull = np.where(prompt, 0.0, lp - q)
    loss, grad = evaluate(
        "truncated_importance_sampling",
        lp,
        inputs | {"logprobs": q, "advantages": advantages},
        ratio_limit=1.1,
        kl_coeff=0.3,
    )
    assert loss == pytest.approx(-(weight * lp * advantages).sum() + 0.15 * (pull**2).sum(), abs=1e-10)
    np.testing.assert_allclose(grad, -weight * advantages + 0.3 * pull, atol=1e-10)
    assert (weight[~prompt] == 1.1).any() and (weight[~prompt] < 1.1).any()


def test_truncated_importance_sampling_has_a_small_divergence_term_unless_told_otherwise() -> None:
    assert LOSSES["truncated_importance_sampling"].config == {"ratio_limit": 2.0, "kl_coeff": 0.01}
