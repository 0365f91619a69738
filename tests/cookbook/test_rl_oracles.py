"""Numbers of the RL data path against independent, slower computations on random trajectories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_service import Service

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl import advantages, data_processing, metrics
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition

SEEDS = range(12)


def random_trajectory(rng: np.random.Generator, with_ids: bool = False) -> Trajectory:
    """Several turns; each next prompt extends the history or starts afresh."""
    turns: list[Transition] = []
    history: list[int] = []
    for turn in range(rng.integers(1, 5)):
        new = [int(t) for t in rng.integers(1, 50, rng.integers(1, 5))]
        observation = [*history, *new] if rng.random() < 0.7 else new
        action = [int(t) for t in rng.integers(1, 50, rng.integers(1, 6))]
        logprobs = [float(x) for x in -rng.random(len(action))]
        ac = TokensWithLogprobs(action, logprobs, sequence_id=f"s{turn}" if with_ids else None)
        turns.append(Transition(tinker.ModelInput.from_ints(observation), ac, float(rng.normal()), False))
        history = observation + action
    return Trajectory(turns, tinker.ModelInput.empty())


def oracle_data(trajectory: Trajectory, per_turn: list[float]) -> list[dict[str, Any]]:
    """Rows of (token, logprob, advantage, mask), one list per datum, then shifted by one."""
    sequences: list[list[tuple[int, float, float, float]]] = []
    for turn, advantage in zip(trajectory.transitions, per_turn, strict=True):
        prompt = turn.ob.to_ints()
        if not sequences or [row[0] for row in sequences[-1]] != prompt[: len(sequences[-1])]:
            sequences.append([])
        rows = sequences[-1]
        rows += [(token, 0.0, 0.0, 0.0) for token in prompt[len(rows) :]]
        rows += [(t, lp, advantage, 1.0) for t, lp in zip(turn.ac.tokens, turn.ac.logprobs, strict=True)]
    return [
        {
            "input": [row[0] for row in rows[:-1]],
            "target_tokens": [row[0] for row in rows[1:]],
            "logprobs": [row[1] for row in rows[1:]],
            "advantages": [row[2] for row in rows[1:]],
            "mask": [row[3] for row in rows[1:]],
        }
        for rows in sequences
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_trajectories_become_the_expected_data(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trajectory = random_trajectory(rng)
    data = data_processing.trajectory_to_data(trajectory, 0.75)
    expected = oracle_data(trajectory, [0.75] * len(trajectory.transitions))
    assert len(data) == len(expected)
    for datum, row in zip(data, expected, strict=True):
        assert datum.model_input.to_ints() == row["input"]
        for key in ("target_tokens", "logprobs", "advantages", "mask"):
            np.testing.assert_allclose(datum.loss_fn_inputs[key].to_numpy(), row[key], rtol=1e-6)
        assert datum.loss_fn_inputs["target_tokens"].dtype == "int64"
        assert set(data_processing.without_mask(datum).loss_fn_inputs) == {"target_tokens", "logprobs", "advantages"}


def test_advantages_may_differ_per_turn() -> None:
    trajectory = random_trajectory(np.random.default_rng(3))
    per_turn = [float(i + 1) for i in range(len(trajectory.transitions))]
    data = data_processing.trajectory_to_data(trajectory, per_turn)
    for datum, row in zip(data, oracle_data(trajectory, per_turn), strict=True):
        np.testing.assert_allclose(datum.loss_fn_inputs["advantages"].to_numpy(), row["advantages"])


@pytest.mark.parametrize("seed", SEEDS)
def test_provenance_tiles_every_position(seed: int) -> None:
    trajectory = random_trajectory(np.random.default_rng(seed), with_ids=True)
    for datum in data_processing.trajectory_to_data(trajectory, 1.0, include_provenance=True):
        spans = datum.model_input_spans
        assert sum(span.length for span in spans) == datum.model_input.length
        sampled = sum(s.length for s in datum.loss_fn_input_spans if isinstance(s, tinker.SampledProvenanceSpan))
        assert sampled == int(datum.loss_fn_inputs["mask"].to_numpy().sum())


def test_masked_turns_carry_no_loss() -> None:
    trajectory = random_trajectory(np.random.default_rng(1))
    for turn in trajectory.transitions:
        turn.metrics[data_processing.PARSE_ERROR_MASKED_METRIC_KEY] = 1
    for datum in data_processing.trajectory_to_data(trajectory, 1.0):
        assert not datum.loss_fn_inputs["advantages"].to_numpy().any()
        assert not datum.loss_fn_inputs["mask"].to_numpy().any()


def group_of(rng: np.random.Generator, size: int = 4) -> TrajectoryGroup:
    trajectories = [random_trajectory(rng) for _ in range(size)]
    return TrajectoryGroup(trajectories, [float(x) for x in rng.normal(size=size)], [{} for _ in range(size)])


@pytest.mark.parametrize("seed", SEEDS)
def test_advantages_equal_their_definitions(seed: int) -> None:
    group = group_of(np.random.default_rng(seed))
    totals = [
        sum(t.reward for t in trajectory.transitions) + final
        for trajectory, final in zip(group.trajectories_G, group.final_rewards_G, strict=True)
    ]
    mean = sum(totals) / len(totals)
    deviation = (sum((x - mean) ** 2 for x in totals) / (len(totals) - 1)) ** 0.5
    expected = {
        "mean_centered": [x - mean for x in totals],
        "std_normalized": [(x - mean) / (deviation + 1e-6) for x in totals],
        "rloo": [x - (sum(totals) - x) / (len(totals) - 1) for x in totals],
    }
    for estimator, values in expected.items():
        got = advantages.estimate_advantages(group, estimator)  # type: ignore[arg-type]
        np.testing.assert_allclose(np.concatenate(got), values, atol=1e-12)
    np.testing.assert_allclose(data_processing.compute_advantages([group])[0], expected["mean_centered"], atol=1e-6)


@pytest.mark.parametrize("gamma,lam", [(1.0, 1.0), (0.9, 0.8), (1.0, 0.0)])
def test_gae_equals_the_recursion_over_group_mean_values(gamma: float, lam: float) -> None:
    group = group_of(np.random.default_rng(5), size=3)
    rewards = []
    for trajectory, final in zip(group.trajectories_G, group.final_rewards_G, strict=True):
        row = [t.reward for t in trajectory.transitions]
        row[-1] += final
        rewards.append(row)

    def return_from(row: list[float], t: int) -> float:
        return sum(gamma ** (k - t) * row[k] for k in range(t, len(row)))

    def value(t: int) -> float:
        return sum(return_from(row, t) if t < len(row) else 0.0 for row in rewards) / len(rewards)

    got = advantages.estimate_advantages(group, "gae", gamma, lam)
    for row, estimate in zip(rewards, got, strict=True):
        for t in range(len(row)):
            expected = 0.0
            for k in range(t, len(row)):
                following = value(k + 1) if k + 1 < len(row) else 0.0
                expected += (gamma * lam) ** (k - t) * (row[k] + gamma * following - value(k))
            assert estimate[t] == pytest.approx(expected)


def test_constant_groups_are_dropped_but_never_all_of_them() -> None:
    rng = np.random.default_rng(0)
    mixed = group_of(rng)
    trajectory = random_trajectory(rng)
    flat = TrajectoryGroup([trajectory, trajectory], [0.0, 0.0], [{}, {}])
    assert data_processing.remove_constant_reward_groups([flat, mixed]) == [mixed]
    assert data_processing.remove_constant_reward_groups([flat, flat]) == [flat]


async def test_kl_penalty_equals_its_formula(universal_tokenizer: Any) -> None:
    rng = np.random.default_rng(7)
    group = group_of(rng)
    client = (await Service(universal_tokenizer).create_sampling_client(base_model="x")).__class__
    sampler = client(Service(universal_tokenizer), rng.normal(size=(1600, 1600)))
    for gamma in (0.0, 0.7):
        data, _ = data_processing.assemble_training_data([group], data_processing.compute_advantages([group]))
        before = [metrics.array(datum, "advantages") for datum in data]
        got, usage = await metrics.incorporate_kl_penalty(data, sampler, 0.3, gamma)
        d, masks = [], []
        for datum in data:
            ids = [*datum.model_input.to_ints(), int(datum.loss_fn_inputs["target_tokens"].to_numpy()[-1])]
            mask = datum.loss_fn_inputs["mask"].to_numpy()
            masks.append(mask)
            d.append(
                [
                    m * (q - p)
                    for m, q, p in zip(
                        mask, datum.loss_fn_inputs["logprobs"].to_numpy(), sampler.score(ids), strict=True
                    )
                ]
            )
        mean = sum(map(sum, d)) / sum(float(m.sum()) for m in masks)
        assert usage.sampled == len(data) and usage.prefill_uncached == sum(len(row) + 1 for row in d)
        assert got["kl_policy_base"] == pytest.approx(mean, rel=1e-5)
        for datum, old, row, mask in zip(data, before, d, masks, strict=True):
            added = [0.3 * m * (mean - x) for m, x in zip(mask, row, strict=True)]
            if gamma:
                added = [sum(gamma ** (k - t) * added[k] for k in range(t, len(added))) for t in range(len(added))]
            np.testing.assert_allclose(metrics.array(datum, "advantages") - old, added, atol=1e-5)


def test_sampler_trainer_kl_counts_sampled_tokens_only() -> None:
    rng = np.random.default_rng(2)
    group = group_of(rng)
    data, _ = data_processing.assemble_training_data([group], data_processing.compute_advantages([group]))
    training = [rng.normal(size=datum.model_input.length) for datum in data]
    q, p = [], []
    for datum, row in zip(data, training, strict=True):
        for t, m in enumerate(datum.loss_fn_inputs["mask"].to_numpy()):
            if m:
                q.append(float(datum.loss_fn_inputs["logprobs"].to_numpy()[t]))
                p.append(float(row[t]))
    got = metrics.compute_kl_sample_train(data, training)
    assert got["optim/kl_sample_train_v1"] == pytest.approx(np.mean(np.subtract(q, p)))
    assert got["optim/kl_sample_train_v2"] == pytest.approx(0.5 * np.mean(np.subtract(q, p) ** 2))
    assert got["optim/entropy"] == pytest.approx(-np.mean(q))


def test_unknown_estimator_and_discount_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="mean_centered"):
        advantages.estimate_advantages(group_of(np.random.default_rng(0)), "best")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="kl_discount_factor"):
        metrics.discounted_future_sum_vectorized([1.0], 1.5)
