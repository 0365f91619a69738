"""Weights in oneDNN's own order: the same products, the same samples, and none where memory is short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tinker_backend.runtime import packed_weights
from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.lora import Adapter, AdapterLayout, AdapterSegment, lora_linear
from tinker_backend.runtime.packed_weights import SUFFIX, pack, packed_linear, packing, packs
from tinker_backend.runtime.roles import LoraSpec, RunSpec, SampleRequest
from tinker_backend.runtime.torch_sampler import TorchSampler
from tinker_backend.runtime.torch_trainer import TorchTrainer

NewSampler = Callable[..., TorchSampler]


def _finish(sampler: TorchSampler, requests: list[SampleRequest], between: Any = None) -> list[Any]:
    futures = [sampler.sample(request) for request in requests]
    while not sampler.idle:
        if between is not None:
            next(between, None)
        sampler.step()
    return [future.result() for future in futures]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_equals_the_plain_one(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(200, 96).to(dtype)
    if not packs(weight):
        pytest.skip(f"this machine has no packed products of {dtype}")
    packed, offset = pack(weight), torch.randn(200).to(dtype) if bias else None
    for rows in (1, 2, 7, 64, 300):
        x = torch.randn(rows, 96).to(dtype)
        exact = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
        error = (packed_linear(x, packed, offset) - exact).abs().max() / exact.abs().max()
        # A few units in the last place: sums in another order, and bfloat16 results are rounded once.
        assert error <= (1e-6 if dtype == torch.float32 else 2**-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prepared_samplers_sample_as_others_do(
    dtype: torch.dtype, tiny_base: Callable[..., BaseModel], data: Any, disturbed: Callable[..., None]
) -> None:
    base = tiny_base("qwen3", False, dtype)
    trainer = TorchTrainer({"tiny": base}, 4096, False)
    disturbed(trainer, "run", LoraSpec(rank=4, seed=3))
    prompts = [data.tokens(int(n)) for n in (5, 17, 40, 40)]
    results = []
    for prepare in ("never", "before", "during"):
        sampler = TorchSampler({"tiny": base}, 8192, 16, 64)
        sampler.load("base", "tiny", None)
        sampler.publish(trainer.runs["run"], "v1")
        pieces = sampler.prepare()
        names = sampler.versions["base"].weight_set.weights
        if prepare == "before":
            count = sum(1 for _ in pieces)
            if not packs(base.weights["layers.0.qkv.weight"]):
                pytest.skip(f"this machine has no packed products of {dtype}")
            assert count == 4 * base.architecture.layers + 1
        requests = [
            SampleRequest(f"q{i}", ["base", "v1"][i % 2], p, num_samples=2, max_tokens=20, seed=i, stop_token_ids=[])
            for i, p in enumerate(prompts)
        ]
        results.append(_finish(sampler, requests, pieces if prepare == "during" else None))
        assert any(n.endswith(SUFFIX) for n in names) == (prepare != "never")
        assert not any(n.endswith(SUFFIX) for n in base.weights)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for plain, before, during in zip(*results, strict=True):
        for a, b, c in zip(plain.sequences, before.sequences, during.sequences, strict=True):
            if dtype == torch.float32:
                assert a.tokens.tolist() == b.tokens.tolist() == c.tokens.tolist()
            alike = int(np.argmin(np.append(a.tokens == b.tokens, False)))  # until the first other token, if any
            np.testing.assert_allclose(b.logprobs[:alike], a.logprobs[:alike], atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_of_few_rows_are_those_of_the_trainer(dtype: torch.dtype, tiny_base: Callable[..., BaseModel]) -> None:
    base = tiny_base("qwen3", False, dtype)
    layout = AdapterLayout(base.architecture, LoraSpec(rank=8, seed=1))
    adapter = Adapter(layout, layout.initial() + 0.05 * torch.randn(layout.size), dtype)
    weight = base.weights["layers.0.qkv.weight"]
    for rows in (1, 3, 40, 100):
        x = torch.randn(rows, weight.shape[1]).to(dtype)
        segments = [AdapterSegment(0, rows, adapter)]
        if rows == 3:
            segments = [AdapterSegment(0, 1, adapter), AdapterSegment(1, 2, None), AdapterSegment(2, 3, adapter)]
        trained = lora_linear(x.clone().requires_grad_(), weight, None, segments, (0, "qkv"))
        with torch.no_grad():
            sampled = lora_linear(x, weight, None, segments, (0, "qkv"))
        scale = float(trained.detach().abs().max())
        torch.testing.assert_close(
            sampled, trained.detach(), rtol=0, atol=scale * (1e-6 if dtype == torch.float32 else 2**-7)
        )


def test_full_weights_of_a_run_are_not_packed(base: BaseModel, new_sampler: NewSampler) -> None:
    trainer, sampler = TorchTrainer({"tiny": base}, 4096, False), new_sampler()
    trainer.create(RunSpec("full", "tiny", LoraSpec(rank=0)))
    sampler.publish(trainer.runs["full"], "v1")
    for _ in sampler.prepare():
        pass
    assert not any(name.endswith(SUFFIX) for name in sampler.versions["v1"].weight_set.weights)


def test_nothing_is_packed_where_memory_is_short(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    names = base.decoder.projection_names(base.weights)
    target: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(packed_weights, "available_memory", lambda: 1024 * 1024)
    assert list(packing(base.weights, target, names)) == [] and not target
    monkeypatch.setattr(packed_weights, "available_memory", lambda: 1 << 40)
    assert len(list(packing(base.weights, target, names))) == len(target)
