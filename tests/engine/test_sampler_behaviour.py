"""Versions, stopping, cancelling, caches and memory of the sampler."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.roles import LoraSpec, LossRequest, OptimParams, RunSpec, RuntimeFault, SampleRequest
from tinker_backend.runtime.torch_sampler import TorchSampler
from tinker_backend.runtime.torch_trainer import TorchTrainer

NewSampler = Callable[..., TorchSampler]


def drain(sampler: TorchSampler, limit: int = 20000) -> None:
    for _ in range(limit):
        if sampler.idle:
            return
        sampler.step()
    raise AssertionError("the sampler did not finish")


def sampled(sampler: TorchSampler, request: SampleRequest) -> Any:
    future = sampler.sample(request)
    drain(sampler)
    return future.result()


@pytest.fixture
def request_of(data: Any) -> Callable[..., SampleRequest]:
    prompt = data.tokens(20)

    def make(request_id: str = "q", **fields: Any) -> SampleRequest:
        given = {"tokens": prompt, "max_tokens": 8, "seed": 1, "stop_token_ids": []} | fields
        return SampleRequest(request_id, given.pop("sampler", "base"), **given)

    return make


def test_length_stops_after_max_tokens_and_null_means_the_whole_context(
    new_sampler: NewSampler, request_of: Any
) -> None:
    result = sampled(new_sampler(), request_of(max_tokens=5)).sequences[0]
    assert len(result.tokens) == len(result.logprobs) == 5 and result.stop_reason == "length"
    assert len(sampled(new_sampler(), request_of(max_tokens=None)).sequences[0].tokens) == 256 - 20


def test_no_tokens_may_be_asked_for(new_sampler: NewSampler, request_of: Any) -> None:
    result = sampled(new_sampler(), request_of(max_tokens=0, prompt_logprobs=True))
    assert len(result.sequences[0].tokens) == 0 and result.prompt_logprobs.shape == (20,)


def test_stop_ids_end_a_sequence_and_are_included(new_sampler: NewSampler, request_of: Any) -> None:
    free = sampled(new_sampler(), request_of(max_tokens=30)).sequences[0].tokens.tolist()
    stop = free[10]
    ended = sampled(new_sampler(), request_of(max_tokens=30, stop_token_ids=[stop])).sequences[0]
    assert ended.stop_reason == "stop"
    assert ended.tokens.tolist() == free[: free.index(stop) + 1]


def test_without_stop_ids_the_end_of_sequence_ids_of_the_model_stop(
    base: BaseModel, new_trainer: Callable[..., TorchTrainer], new_sampler: NewSampler, request_of: Any, data: Any
) -> None:
    trainer, sampler = new_trainer(), new_sampler()
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=8, seed=1)))
    datum = data.datum(20, weighted=False)
    datum.inputs["target_tokens"][:] = base.eos_token_ids[0]
    for _ in range(15):
        trainer.forward_backward([LossRequest("run", 1, [datum], "cross_entropy")])
        trainer.optim_step("run", OptimParams(learning_rate=0.05))
    sampler.publish(trainer.runs["run"], "eager")
    request = request_of(sampler="eager", max_tokens=20, stop_token_ids=None, temperature=0.0)
    ended = sampled(sampler, request).sequences[0]
    assert ended.stop_reason == "stop" and ended.tokens.tolist() == [2]
    free = sampled(sampler, replace(request, stop_token_ids=[])).sequences[0]
    assert free.stop_reason == "length" and len(free.tokens) == 20


def test_stop_strings_are_found_across_token_borders(base: BaseModel, new_sampler: NewSampler, request_of: Any) -> None:
    tokenizer: Tokenizer = base.tokenizer
    free = sampled(new_sampler(), request_of(max_tokens=40)).sequences[0].tokens.tolist()
    ends = [len(tokenizer.decode(free[: i + 1], skip_special_tokens=False)) for i in range(40)]
    text = tokenizer.decode(free, skip_special_tokens=False)
    border = next(i for i in range(5, 39) if ends[i] - ends[i - 1] >= 1 and ends[i + 1] - ends[i] >= 1)
    needle = text[ends[border] - 1 : ends[border] + 1]
    ended = sampled(new_sampler(), request_of(max_tokens=40, stop_strings=[needle])).sequences[0]
    first = next(i for i in range(40) if needle in tokenizer.decode(free[: i + 1], skip_special_tokens=False))
    assert ended.stop_reason == "stop" and ended.tokens.tolist() == free[: first + 1]


def test_a_version_is_frozen_while_its_run_trains_on(
    new_trainer: Callable[..., TorchTrainer], new_sampler: NewSampler, request_of: Any, data: Any, disturbed: Any
) -> None:
    for rank in (4, 0):
        trainer, sampler = new_trainer(), new_sampler()
        if rank:
            disturbed(trainer, "run", LoraSpec(rank=rank, seed=1))
        else:
            trainer.create(RunSpec("run", "tiny", LoraSpec(rank=0)))
        before = trainer.runs["run"].values
        sampler.publish(trainer.runs["run"], "v1")
        request = request_of(sampler="v1", prompt_logprobs=True)
        first = sampled(sampler, request)
        trainer.forward_backward([LossRequest("run", 1, data.batch(3), "cross_entropy")])
        trainer.optim_step("run", OptimParams(learning_rate=0.05))
        assert trainer.runs["run"].values is not before
        again = sampled(sampler, request)
        np.testing.assert_array_equal(first.sequences[0].tokens, again.sequences[0].tokens)
        np.testing.assert_array_equal(first.prompt_logprobs[1:], again.prompt_logprobs[1:])
        sampler.publish(trainer.runs["run"], "v2")
        moved = sampled(sampler, replace(request, sampler="v2"))
        assert np.abs(moved.prompt_logprobs[1:] - first.prompt_logprobs[1:]).max() > 1e-2


def test_a_published_version_copies_no_weights_and_is_freed_when_dropped(
    new_trainer: Callable[..., TorchTrainer], new_sampler: NewSampler, data: Any, request_of: Any
) -> None:
    trainer, sampler = new_trainer(), new_sampler()
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=4, seed=1)))
    sampler.publish(trainer.runs["run"], "v1")
    version = sampler.versions["v1"]
    assert version.adapter is not None
    assert version.adapter.flat.data_ptr() == trainer.runs["run"].values.data_ptr()
    assert version.weight_set is sampler.versions["base"].weight_set
    assert all(version.weight_set.weights[name] is weight for name, weight in version.base.weights.items())
    sampled(sampler, request_of(sampler="v1"))
    assert sampler.batcher.prefixes.tokens > 0
    trainer.forward_backward([LossRequest("run", 1, data.batch(2), "cross_entropy")])
    trainer.optim_step("run", OptimParams())
    held = weakref.ref(version.adapter)
    del version
    sampler.drop("v1")
    gc.collect()
    assert held() is None
    assert sampler.batcher.prefixes.tokens == 0 and sampler.batcher.budget.used == 0
    with pytest.raises(RuntimeFault, match="'v1' is not loaded"):
        sampler.sample(request_of(sampler="v1"))


def test_a_version_name_is_never_used_twice(new_trainer: Callable[..., TorchTrainer], new_sampler: NewSampler) -> None:
    trainer, sampler = new_trainer(), new_sampler()
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=4)))
    with pytest.raises(RuntimeFault, match="'base' exists already"):
        sampler.publish(trainer.runs["run"], "base")


@pytest.mark.parametrize("rank", [4, 0])
def test_saved_weights_sample_like_published_ones(
    rank: int,
    new_trainer: Callable[..., TorchTrainer],
    new_sampler: NewSampler,
    request_of: Any,
    data: Any,
    tmp_path: Any,
) -> None:
    trainer, sampler = new_trainer(), new_sampler()
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=rank, seed=1)))
    trainer.forward_backward([LossRequest("run", 1, data.batch(3), "cross_entropy")])
    trainer.optim_step("run", OptimParams(learning_rate=0.01))
    sampler.publish(trainer.runs["run"], "live")
    for kind in ("sampler", "external", "training"):
        trainer.save("run", str(tmp_path / kind), kind)  # type: ignore[arg-type]
        sampler.load(kind, "tiny", str(tmp_path / kind))
        live, loaded = (
            sampled(sampler, request_of(sampler=s, tokens=np.arange(9, dtype=np.int32))) for s in ("live", kind)
        )
        assert live.sequences[0].tokens.tolist() == loaded.sequences[0].tokens.tolist()
        np.testing.assert_allclose(live.sequences[0].logprobs, loaded.sequences[0].logprobs, atol=1e-5)


def test_a_cancelled_request_fails_and_frees_its_memory_wherever_it_is(
    new_sampler: NewSampler, request_of: Any
) -> None:
    sampler = new_sampler(kv_tokens=768, batch=2, read_tokens=16)
    futures = {i: sampler.sample(request_of(f"q{i}", num_samples=2, max_tokens=40, seed=i)) for i in range(8)}
    for _ in range(6):
        sampler.step()
    for i in range(0, 8, 2):
        sampler.cancel(f"q{i}")
        assert isinstance(futures[i].exception(timeout=0), RuntimeFault)
    drain(sampler)
    for i in range(1, 8, 2):
        assert len(futures[i].result().sequences) == 2
    assert sampler.batcher.budget.used == sampler.batcher.prefixes.tokens
    assert sampler.batcher.running == 0 and sampler.batcher.idle
    sampler.cancel("never heard of it")


def test_requests_wait_for_memory_and_none_fails(new_sampler: NewSampler, request_of: Any, data: Any) -> None:
    sampler = new_sampler(kv_tokens=1, batch=16)
    limit = sampler.batcher.budget.limit
    assert limit == 3 * 256
    futures = [
        sampler.sample(request_of(f"q{i}", tokens=data.tokens(100), num_samples=3, max_tokens=100)) for i in range(8)
    ]
    highest = 0
    while not sampler.idle:
        sampler.step()
        highest = max(highest, sampler.batcher.budget.used)
    assert all(len(s.tokens) == 100 for f in futures for s in f.result().sequences)
    assert highest <= limit


def test_the_prefix_of_an_earlier_turn_is_not_computed_again(
    new_sampler: NewSampler, request_of: Any, data: Any
) -> None:
    sampler = new_sampler()
    first = sampled(sampler, request_of(tokens=data.tokens(50), max_tokens=30, stop_token_ids=list(range(0, 512, 3))))
    assert first.prompt_cache_hit_tokens == 0 and first.sequences[0].stop_reason == "stop"
    turn = np.concatenate([data.tokens(0), sampler_prompt(sampler), data.tokens(10)])
    second = sampled(sampler, request_of("again", tokens=turn))
    assert second.prompt_cache_hit_tokens >= 49
    (expected,) = (sampled(new_sampler(), request_of("fresh", tokens=turn)).sequences,)
    assert second.sequences[0].tokens.tolist() == expected[0].tokens.tolist()


def sampler_prompt(sampler: TorchSampler) -> np.ndarray:
    """Tokens of the longest prefix that the sampler remembers."""
    segments = sampler.batcher.prefixes._segments.values()
    return max((s.tokens for s in segments), key=len).astype(np.int32)


def test_equal_prompts_of_many_requests_are_read_once(new_sampler: NewSampler, request_of: Any, data: Any) -> None:
    sampler, tokens = new_sampler(batch=32), data.tokens(40)
    futures = [sampler.sample(request_of(f"q{i}", tokens=tokens, seed=i)) for i in range(20)]
    drain(sampler)
    hits = sorted(f.result().prompt_cache_hit_tokens for f in futures)
    assert hits == [0] + [40] * 19
    alone = sampled(new_sampler(), request_of("q7", tokens=tokens, seed=7))
    assert futures[7].result().sequences[0].tokens.tolist() == alone.sequences[0].tokens.tolist()


def test_turns_of_a_conversation_hold_its_tokens_about_twice_and_not_once_a_turn(
    new_sampler: NewSampler, request_of: Any, data: Any
) -> None:
    """A prompt and its answer supersede those of earlier turns, which a retry still finds inside them."""
    sampler, thirds = new_sampler(), list(range(0, 512, 3))
    first = talk = data.tokens(20)
    known = 0
    for turn in range(5):
        result = sampled(sampler, request_of(f"t{turn}", tokens=talk, max_tokens=50, stop_token_ids=thirds))
        assert result.sequences[0].stop_reason == "stop" and result.prompt_cache_hit_tokens >= known
        answer = np.asarray(result.sequences[0].tokens)
        asked, known = len(talk), len(talk) + len(answer) - 1
        talk = np.concatenate([talk, answer, data.tokens(12)])
    assert sampler.batcher.prefixes.tokens == sampler.batcher.budget.used == asked + known
    again = sampled(sampler, request_of("again", tokens=first))
    assert again.prompt_cache_hit_tokens == 19


def test_a_prompt_stays_ready_beside_its_answers(new_sampler: NewSampler, request_of: Any) -> None:
    sampler = new_sampler()
    for number in range(3):
        hit = sampled(sampler, request_of(f"q{number}", seed=number, max_tokens=20)).prompt_cache_hit_tokens
        assert hit == (20 if number else 0)


def test_large_keys_and_values_are_mapped_and_give_the_same_samples(
    new_sampler: NewSampler, request_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinker_backend.runtime import kv_cache

    usual = sampled(new_sampler(), request_of(num_samples=4, max_tokens=100))
    monkeypatch.setattr(kv_cache, "_OWN_MAPPING_BYTES", 1)
    mapped = sampled(new_sampler(), request_of(num_samples=4, max_tokens=100))
    for one, other in zip(usual.sequences, mapped.sequences, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


def test_a_prefix_of_one_version_is_not_used_by_another(
    new_trainer: Callable[..., TorchTrainer], new_sampler: NewSampler, request_of: Any, data: Any, disturbed: Any
) -> None:
    trainer, sampler = new_trainer(), new_sampler()
    disturbed(trainer, "run", LoraSpec(rank=4, seed=1))
    sampler.publish(trainer.runs["run"], "v1")
    tokens = data.tokens(64)
    sampled(sampler, request_of(tokens=tokens))
    assert sampled(sampler, request_of(tokens=tokens, sampler="v1")).prompt_cache_hit_tokens == 0
    assert sampled(sampler, request_of(tokens=tokens, sampler="v1")).prompt_cache_hit_tokens == 64


def test_a_request_with_many_samples_lets_a_small_one_in(new_sampler: NewSampler, request_of: Any, data: Any) -> None:
    sampler = new_sampler(batch=4)
    many = request_of("many", num_samples=40, max_tokens=20)
    large = sampler.sample(many)
    for _ in range(5):
        sampler.step()
    small = [sampler.sample(request_of(f"small{i}", tokens=data.tokens(9), max_tokens=4)) for i in range(2)]
    for _ in range(30):  # one turn of the large request's rows, and then some
        sampler.step()
    assert all(future.done() for future in small) and not large.done()
    drain(sampler)
    assert sampler.batcher.running == 0 and not sampler.batcher.pending
    alone = sampled(new_sampler(), many)
    for one, other in zip(large.result().sequences, alone.sequences, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)


def test_a_failing_prompt_fails_alone(
    new_sampler: NewSampler, request_of: Any, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinker_backend.runtime import prompt_scores

    def explode(*_: Any) -> None:
        raise MemoryError("no memory for scores")

    monkeypatch.setattr(prompt_scores.PromptScores, "collect", explode)
    sampler = new_sampler()
    futures = [sampler.sample(request_of(f"q{i}", tokens=data.tokens(15), prompt_logprobs=i == 1)) for i in range(3)]
    drain(sampler)
    assert isinstance(futures[1].exception(), RuntimeFault)
    assert len(futures[0].result().sequences[0].tokens) == len(futures[2].result().sequences[0].tokens) == 8


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 3}, {"num_samples": 3}])
def test_weights_that_have_diverged_are_told_and_harm_no_neighbour(
    fields: dict[str, Any], new_trainer: Callable[..., TorchTrainer], new_sampler: NewSampler, request_of: Any
) -> None:
    trainer, sampler = new_trainer(), new_sampler()
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=4, seed=1)))
    trainer.runs["run"].values.fill_(float("nan"))
    sampler.publish(trainer.runs["run"], "v1")
    expected = sampled(new_sampler(), request_of()).sequences[0].tokens
    broken, good = sampler.sample(request_of("a", sampler="v1", **fields)), sampler.sample(request_of("b"))
    drain(sampler)
    with pytest.raises(RuntimeFault, match="diverged.*lower the learning rate"):
        broken.result()
    np.testing.assert_array_equal(good.result().sequences[0].tokens, expected)
    sampler.drop("v1")
    assert sampler.batcher.running == 0 and not sampler.batcher.pending


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": np.array([], dtype=np.int32)}, "prompt has 0 tokens; between 1 and 256"),
        ({"tokens": np.zeros(257, dtype=np.int32)}, "prompt has 257 tokens"),
        ({"tokens": np.array([5, 600], dtype=np.int32)}, "600 is outside the vocabulary of 512"),
        ({"max_tokens": 300}, "max_tokens 300 with a prompt of 20 tokens.*at most 236"),
        ({"max_tokens": -1}, "max_tokens -1"),
        ({"num_samples": 0}, "num_samples 0"),
        ({"temperature": -0.5}, "temperature -0.5"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_k": 0}, "top_k 0"),
        ({"topk_prompt_logprobs": 512}, "topk_prompt_logprobs 512"),
        ({"prompt_logprobs_last_n": 3}, "prompt_logprobs_last_n 3"),
        ({"target_prompt_logprobs": np.zeros((3, 1), dtype=np.int64)}, r"\(19, K\) is needed"),
        ({"target_prompt_logprobs": np.full((19, 1), 512)}, "outside -1 .. 511"),
        ({"sampler": "nobody"}, "'nobody' is not loaded"),
    ],
)
def test_wrong_requests_are_refused_at_once(
    fields: dict[str, Any], message: str, new_sampler: NewSampler, request_of: Any
) -> None:
    sampler = new_sampler()
    with pytest.raises(RuntimeFault, match=message):
        sampler.sample(request_of(**fields))
    assert sampler.idle


def test_samples_run_in_bfloat16_close_to_the_trainer(
    tiny_base: Callable[..., BaseModel], new_trainer: Any, new_sampler: Any, request_of: Any, disturbed: Any
) -> None:
    from tinker_backend.runtime.roles import Datum

    base = tiny_base("qwen3", False, torch.bfloat16)
    trainer, sampler = new_trainer(model=base), new_sampler(model=base)
    disturbed(trainer, "run", LoraSpec(rank=4, seed=1))
    sampler.publish(trainer.runs["run"], "v1")
    request = request_of(sampler="v1", num_samples=8, max_tokens=40)
    result = sampled(sampler, request)
    gaps = []
    for sequence in result.sequences:
        full = np.concatenate([request.tokens, sequence.tokens]).astype(np.int64)
        datum = Datum(full[:-1].astype(np.int32), {"target_tokens": full[1:]})
        (scored,) = trainer.forward_backward([LossRequest("run", 1, [datum], "cross_entropy", forward_only=True)])
        gaps.append(sequence.logprobs - scored.outputs[0]["logprobs"][19:])
    assert np.abs(np.concatenate(gaps)).max() < 0.1
    assert abs(np.concatenate(gaps).mean()) < 0.01
