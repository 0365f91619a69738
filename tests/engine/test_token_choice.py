"""Sampling one token: distributions, filters, logprobs, and numbers that depend on the request alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tinker_backend.runtime.token_choice import ChoiceParams, choose, uniforms

VOCAB = 300


def logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def test_uniforms_are_uniform_and_differ_in_every_argument() -> None:
    steps = np.arange(20000)
    u = uniforms([5] * 20000, [0] * 20000, steps)
    assert u.min() >= 0 and u.max() < 1
    counts = np.histogram(u, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 45
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03
    base = uniforms([1], [2], [3])[0]
    assert base == uniforms([1], [2], [3])[0]
    assert len({base, uniforms([2], [2], [3])[0], uniforms([1], [3], [3])[0], uniforms([1], [2], [4])[0]}) == 4


@pytest.mark.parametrize("vocab", [128, 300, 1000])
def test_tokens_follow_the_softmax(vocab: int) -> None:
    row = logits(1, vocab)
    count = 40000
    draws = uniforms([3] * count, [0] * count, np.arange(count))
    got = choose(row.expand(count, vocab).clone(), [ChoiceParams()] * count, draws)
    expected = row.softmax(-1)[0].numpy()
    seen = np.bincount(got.tokens, minlength=vocab) / count
    assert np.abs(seen - expected).max() < 5 * np.sqrt(expected.max() / count)
    np.testing.assert_allclose(got.logprobs, row.log_softmax(-1)[0].numpy()[got.tokens], atol=1e-5)


def test_a_draw_is_the_point_where_the_cumulative_distribution_passes_it() -> None:
    rows = logits(50)
    draws = np.random.default_rng(0).random(50)
    got = choose(rows, [ChoiceParams()] * 50, draws)
    cumulative = rows.double().softmax(-1).cumsum(-1).numpy()
    expected = [int(np.searchsorted(c, u, side="right")) for c, u in zip(cumulative, draws, strict=True)]
    assert got.tokens.tolist() == expected


def test_extreme_draws_and_impossible_tokens_are_never_chosen_wrongly() -> None:
    rows = torch.full((3, VOCAB), -float("inf"))
    rows[:, 17] = 0.0
    rows[:, 290] = 1.0
    got = choose(rows, [ChoiceParams()] * 3, np.array([0.0, 0.5, 1 - 2**-53]))
    assert got.tokens.tolist() == [17, 290, 290]


def test_temperature_scales_and_logprobs_are_those_of_the_scaled_distribution() -> None:
    rows = logits(20)
    draws = np.random.default_rng(1).random(20)
    got = choose(rows.clone(), [ChoiceParams(temperature=0.5)] * 20, draws)
    expected = (rows / 0.5).log_softmax(-1)
    np.testing.assert_allclose(got.logprobs, expected.gather(1, torch.tensor(got.tokens)[:, None])[:, 0], atol=1e-5)


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-45, 1e-320])
def test_temperatures_near_zero_take_the_most_probable_token_too(temperature: float) -> None:
    rows = logits(20)
    draws = np.random.default_rng(1).random(20)
    got = choose(rows.clone(), [ChoiceParams(temperature)] * 10 + [ChoiceParams(temperature, 5, 0.9)] * 10, draws, 3)
    assert got.tokens.tolist() == rows.argmax(-1).tolist()
    np.testing.assert_allclose(got.logprobs, 0.0, atol=1e-5)
    assert got.top_logprobs is not None and np.isfinite(got.top_logprobs).all()


def test_temperature_zero_takes_the_most_probable_token() -> None:
    rows = logits(20)
    got = choose(rows.clone(), [ChoiceParams(temperature=0.0, top_k=5)] * 20, np.random.default_rng(1).random(20))
    assert got.tokens.tolist() == rows.argmax(-1).tolist()
    np.testing.assert_allclose(got.logprobs, rows.log_softmax(-1).max(-1).values, atol=1e-5)


def test_top_k_keeps_k_tokens_and_renormalises() -> None:
    row = logits(1)
    draws = np.linspace(0, 1, 500, endpoint=False)
    got = choose(row.expand(500, VOCAB).clone(), [ChoiceParams(top_k=4)] * 500, draws, top=6)
    best = row[0].topk(4)
    assert set(got.tokens) == set(best.indices.tolist())
    expected = dict(zip(best.indices.tolist(), best.values.log_softmax(-1).tolist(), strict=True))
    np.testing.assert_allclose(got.logprobs, [expected[t] for t in got.tokens], atol=1e-5)
    assert got.top_ids is not None and got.top_logprobs is not None
    assert got.top_ids[0, :4].tolist() == best.indices.tolist() and got.top_ids[0, 4:].tolist() == [0, 0]
    assert (got.top_logprobs[0, 4:] == -99999.0).all()


@pytest.mark.parametrize("vocab", [300, 2000])
@pytest.mark.parametrize("top_p", [0.3, 0.95, 0.999])
def test_top_p_keeps_the_smallest_set_that_reaches_p(vocab: int, top_p: float) -> None:
    row = logits(1, vocab) / 3
    draws = np.linspace(0, 1, 4000, endpoint=False)
    got = choose(row.expand(4000, vocab).clone(), [ChoiceParams(top_p=top_p)] * 4000, draws)
    probabilities = row[0].double().softmax(-1)
    order = probabilities.sort(descending=True)
    keep = int((order.values.cumsum(-1) < top_p).sum()) + 1
    allowed = order.indices[:keep].tolist()
    assert set(got.tokens) <= set(allowed)
    kept = probabilities[allowed] / probabilities[allowed].sum()
    expected = dict(zip(allowed, kept.log().tolist(), strict=True))
    np.testing.assert_allclose(got.logprobs, [expected[t] for t in got.tokens], atol=1e-4)


def test_rows_with_different_parameters_do_not_touch_one_another() -> None:
    params = [ChoiceParams(), ChoiceParams(0.7), ChoiceParams(0.0), ChoiceParams(top_k=3), ChoiceParams(1.3, 10, 0.5)]
    rows, draws = logits(5), np.random.default_rng(2).random(5)
    together = choose(rows.clone(), params, draws, top=3)
    for i in range(5):
        alone = choose(rows[i : i + 1].clone(), params[i : i + 1], draws[i : i + 1], top=3)
        assert alone.tokens[0] == together.tokens[i]
        assert alone.logprobs[0] == pytest.approx(together.logprobs[i], abs=1e-6)
        assert alone.top_ids is not None and together.top_ids is not None
        assert alone.top_ids[0].tolist() == together.top_ids[i].tolist()
