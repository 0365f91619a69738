"""Cached, batched sampling equals naive generation, and its logprobs equal those of the trainer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tinker_backend.models.tiny import FAMILIES
from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.roles import (
    CsrArray,
    Datum,
    LoraSpec,
    LossRequest,
    LossResult,
    RunSpec,
    SampleRequest,
    SampleResult,
)
from tinker_backend.runtime.token_choice import ChoiceParams, choose, uniforms
from tinker_backend.runtime.torch_sampler import TorchSampler
from tinker_backend.runtime.torch_trainer import TorchTrainer

NewSampler = Callable[..., TorchSampler]
NewTrainer = Callable[..., TorchTrainer]


def finish(sampler: TorchSampler, *requests: SampleRequest) -> list[SampleResult]:
    """Runs requests that arrive together."""
    futures: list[Future[SampleResult]] = [sampler.sample(r) for r in requests]
    for _ in range(20000):
        if sampler.idle:
            return [f.result() for f in futures]
        sampler.step()
    raise AssertionError("the sampler did not finish")


def naive(model: Any, request: SampleRequest, index: int) -> list[int]:
    """The whole sequence through transformers for every token, without any cache."""
    ids = torch.tensor(request.tokens.astype(np.int64))[None]
    tokens: list[int] = []
    params = ChoiceParams(request.temperature, request.top_k, request.top_p)
    assert request.max_tokens is not None and request.seed is not None
    while len(tokens) < request.max_tokens:
        with torch.no_grad():
            logits = model(input_ids=ids).logits[:, -1].float()
        tokens += choose(logits, [params], uniforms([request.seed], [index], [len(tokens)])).tokens.tolist()
        ids = torch.cat([ids, torch.tensor([[tokens[-1]]])], 1)
        if tokens[-1] == 2:
            break
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_batched_cached_tokens_equal_naive_generation(
    family: str, tiny_base: Callable[..., BaseModel], new_sampler: NewSampler, data: Any
) -> None:
    base = tiny_base(family, False)
    model = AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    requests = [
        SampleRequest(
            f"q{i}",
            "base",
            data.tokens(int(data.rng.integers(1, 90))),
            num_samples=1 + i % 2,
            max_tokens=12,
            seed=100 + i,
            temperature=[1.0, 0.0, 0.7][i % 3],
            top_k=[-1, -1, 20][i % 3],
        )
        for i in range(6)
    ]
    for request, result in zip(requests, finish(new_sampler(model=base), *requests), strict=True):
        for index, sequence in enumerate(result.sequences):
            assert sequence.tokens.tolist() == naive(model, request, index)


def mixed_requests(data: Any) -> list[SampleRequest]:
    shared = data.tokens(60)
    requests = []
    for i in range(14):
        tokens = np.concatenate([shared, data.tokens(i)]) if i % 3 == 0 else data.tokens(int(data.rng.integers(1, 100)))
        requests.append(
            SampleRequest(
                f"q{i}",
                ["a", "b", "base"][i % 3],
                tokens,
                num_samples=1 + i % 4,
                max_tokens=10 + 5 * i,
                seed=i,
                temperature=[1.0, 0.8, 0.0][i % 3],
                top_p=[1.0, 0.9][i % 2],
                stop_token_ids=[] if i % 2 else None,
                prompt_logprobs=i % 4 == 1,
                topk_sample_logprobs=i % 3,
            )
        )
    return requests


@pytest.fixture
def two_adapters(new_trainer: NewTrainer, disturbed: Any) -> TorchTrainer:
    trainer = new_trainer()
    disturbed(trainer, "a", LoraSpec(rank=4, seed=1))
    disturbed(trainer, "b", LoraSpec(rank=8, seed=2))
    return trainer


def sampler_of(two_adapters: TorchTrainer, sampler: TorchSampler) -> TorchSampler:
    for name in ("a", "b"):
        sampler.publish(two_adapters.runs[name], name)
    return sampler


@pytest.mark.parametrize("kv_tokens", [8192, 768])
def test_a_seeded_request_gives_the_same_tokens_alone_or_in_company(
    kv_tokens: int, two_adapters: TorchTrainer, new_sampler: NewSampler, data: Any
) -> None:
    """With 768 tokens of memory requests also wait, move, are set back and are read again."""
    requests = mixed_requests(data)
    busy = sampler_of(two_adapters, new_sampler(kv_tokens=kv_tokens, batch=7))
    for request, together in zip(requests, finish(busy, *requests), strict=True):
        (alone,) = finish(sampler_of(two_adapters, new_sampler()), request)
        for a, b in zip(together.sequences, alone.sequences, strict=True):
            assert a.tokens.tolist() == b.tokens.tolist() and a.stop_reason == b.stop_reason
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


def test_sampler_logprobs_equal_trainer_logprobs(
    two_adapters: TorchTrainer, new_sampler: NewSampler, data: Any
) -> None:
    two_adapters.create(RunSpec("base", "tiny", LoraSpec(rank=1, seed=1)))
    requests = [replace(r, temperature=1.0, top_p=1.0, prompt_logprobs=True) for r in mixed_requests(data)]
    results = finish(sampler_of(two_adapters, new_sampler()), *requests)
    worst = 0.0
    for request, result in zip(requests, results, strict=True):
        size = len(request.tokens)
        for sequence in result.sequences:
            full = np.concatenate([request.tokens, sequence.tokens]).astype(np.int64)
            datum = Datum(full[:-1].astype(np.int32), {"target_tokens": full[1:]})
            (scored,) = two_adapters.forward_backward(
                [LossRequest(request.sampler, 1, [datum], "cross_entropy", forward_only=True)]
            )
            assert isinstance(scored, LossResult)
            logprobs = scored.outputs[0]["logprobs"]
            worst = max(worst, np.abs(logprobs[size - 1 :] - sequence.logprobs).max())
            assert result.prompt_logprobs is not None
            assert np.isnan(result.prompt_logprobs[0])
            if size > 1:
                worst = max(worst, np.abs(logprobs[: size - 1] - result.prompt_logprobs[1:]).max())
    assert worst < 1e-5


def test_a_group_equals_its_members_asked_one_by_one(new_sampler: NewSampler, data: Any) -> None:
    request = SampleRequest("g", "base", data.tokens(30), num_samples=5, max_tokens=15, seed=3, stop_token_ids=[])
    (group,) = finish(new_sampler(batch=3), request)
    assert len({tuple(s.tokens) for s in group.sequences}) == 5
    (again,) = finish(new_sampler(), replace(request, num_samples=2))
    assert [s.tokens.tolist() for s in again.sequences] == [s.tokens.tolist() for s in group.sequences[:2]]


def reference_logprobs(base: BaseModel, tokens: np.ndarray) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    with torch.no_grad():
        return model(input_ids=torch.tensor(tokens.astype(np.int64))[None]).logits[0].log_softmax(-1).numpy()


@pytest.mark.parametrize("read_tokens", [16, 1024])
def test_prompt_scores_equal_transformers(
    base: BaseModel, new_sampler: NewSampler, data: Any, read_tokens: int
) -> None:
    tokens = data.tokens(70)
    targets = data.rng.integers(-1, 512, (69, 3)).astype(np.int64)
    request = SampleRequest(
        "q",
        "base",
        tokens,
        max_tokens=1,
        prompt_logprobs=True,
        topk_prompt_logprobs=4,
        target_prompt_logprobs=targets,
        prompt_alt_tokens_k=2,
    )
    (result,) = finish(new_sampler(read_tokens=read_tokens), request)
    expected = reference_logprobs(base, tokens)
    rows, ids = np.arange(69), tokens[1:]
    assert result.prompt_logprobs is not None and result.topk_prompt_logprobs is not None
    np.testing.assert_allclose(result.prompt_logprobs[1:], expected[rows, ids], atol=1e-5)
    top = result.topk_prompt_logprobs
    assert top.token_ids.shape == (70, 4) and (top.token_ids[0] == 0).all() and (top.logprobs[0] == -99999.0).all()
    best = np.argsort(-expected[:-1], axis=-1)
    assert (top.token_ids[1:] == best[:, :4]).all()
    np.testing.assert_allclose(top.logprobs[1:], np.take_along_axis(expected[:-1], best[:, :4], -1), atol=1e-5)
    asked = np.where(targets < 0, 0.0, np.take_along_axis(expected[:-1], np.maximum(targets, 0), -1))
    np.testing.assert_allclose(result.target_prompt_logprobs, asked, atol=1e-5)
    alternatives = result.prompt_alt_tokens
    assert alternatives is not None and alternatives.token_ids.shape == (69, 2)
    for row in range(69):
        assert alternatives.token_ids[row].tolist() == [t for t in best[row] if t != ids[row]][:2]


def test_sparse_targets_come_back_in_the_layout_of_the_request(
    base: BaseModel, new_sampler: NewSampler, data: Any
) -> None:
    tokens = data.tokens(5)
    crow, col = np.array([0, 1, 1, 3, 3]), np.array([2, 0, 1])
    targets = CsrArray(np.array([7, 8, 9]), crow, col, (4, 3))
    (result,) = finish(new_sampler(), SampleRequest("q", "base", tokens, max_tokens=1, target_prompt_logprobs=targets))
    got = result.target_prompt_logprobs
    assert isinstance(got, CsrArray) and got.crow_indices.tolist() == crow.tolist()
    expected = reference_logprobs(base, tokens)
    np.testing.assert_allclose(got.values, [expected[0, 7], expected[2, 8], expected[2, 9]], atol=1e-5)


def test_only_the_asked_end_of_the_prompt_is_scored_and_the_rest_comes_from_the_cache(
    base: BaseModel, new_sampler: NewSampler, data: Any
) -> None:
    sampler, tokens = new_sampler(), data.tokens(60)
    finish(sampler, SampleRequest("first", "base", tokens[:50], max_tokens=1))
    request = SampleRequest("q", "base", tokens, max_tokens=1, prompt_logprobs=True, prompt_logprobs_last_n=5)
    (result,) = finish(sampler, request)
    assert result.prompt_logprobs is not None
    assert np.isnan(result.prompt_logprobs[:-5]).all()
    assert result.prompt_cache_hit_tokens == 50
    expected = reference_logprobs(base, tokens)
    np.testing.assert_allclose(result.prompt_logprobs[-5:], expected[np.arange(54, 59), tokens[55:]], atol=1e-5)
