"""The trainer computes exactly what a plain loop over peft and torch computes, however requests are packed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tinker_backend.models.tiny import FAMILIES
from tinker_backend.runtime.base_model import BaseModel, unfuse
from tinker_backend.runtime.roles import (
    CsrArray,
    Datum,
    LoraSpec,
    LossRequest,
    LossResult,
    OptimParams,
    RunSpec,
    RuntimeFault,
)
from tinker_backend.runtime.torch_trainer import TorchTrainer

STEP = OptimParams(learning_rate=1e-2, weight_decay=0.1, grad_clip_norm=1.0)


def result(value: LossResult | RuntimeFault) -> LossResult:
    assert isinstance(value, LossResult), value
    return value


def plain_loss(model: Any, batch: list[Datum]) -> tuple[torch.Tensor, list[np.ndarray]]:
    """-sum w lp of a transformers model, datum by datum, and the logprobs."""
    total, logprobs = torch.zeros(()), []
    for datum in batch:
        ids = torch.tensor(datum.tokens.astype(np.int64))[None]
        target = torch.tensor(datum.inputs["target_tokens"])[:, None]
        lp = model(input_ids=ids).logits[0].log_softmax(-1).gather(1, target)[:, 0]
        total = total - (torch.tensor(datum.inputs["weights"]) * lp).sum()
        logprobs.append(lp.detach().numpy())
    return total, logprobs


def adamw(parameters: list[torch.nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.95), eps=1e-12, weight_decay=0.1)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_steps_equal_peft_and_torch_adamw(
    family: str,
    tiny_base: Callable[..., BaseModel],
    new_trainer: Callable[..., TorchTrainer],
    data: Any,
    tmp_path: Path,
) -> None:
    base = tiny_base(family, False)
    trainer = new_trainer(tokens=100, model=base)
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=4, seed=1)))
    trainer.save("run", str(tmp_path / "start"), "external")
    plain = AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(plain, str(tmp_path / "start"), is_trainable=True)
    parameters = {n.replace(".default", ""): p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = adamw(list(parameters.values()))
    for _ in range(3):
        batch = data.batch(6)
        got = result(trainer.forward_backward([LossRequest("run", 1, batch, "cross_entropy")])[0])
        loss, logprobs = plain_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(parameters.values()), 1.0)
        optimizer.step()
        metrics = trainer.optim_step("run", STEP)
        assert got.metrics["loss:sum"] == pytest.approx(float(loss.detach()), rel=1e-5)
        assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
        for output, expected in zip(got.outputs, logprobs, strict=True):
            np.testing.assert_allclose(output["logprobs"], expected, atol=1e-5)
    run = trainer.runs["run"]
    ours = run.layout.tensors(run.values)
    assert {f"base_model.model.{n}" for n in ours} == set(parameters)
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, parameters[f"base_model.model.{name}"].data, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "phi", "gpt2"])
@pytest.mark.parametrize("tied", [True, False])
def test_steps_of_all_weights_equal_torch_autograd(
    family: str, tied: bool, tiny_base: Callable[..., BaseModel], new_trainer: Callable[..., TorchTrainer], data: Any
) -> None:
    base = tiny_base(family, tied)
    trainer = new_trainer(tokens=100, model=base)
    trainer.create(RunSpec("run", "tiny", LoraSpec(rank=0)))
    model = AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    optimizer = adamw(list(model.parameters()))
    for _ in range(2):
        batch = data.batch(5)
        result(trainer.forward_backward([LossRequest("run", 1, batch, "cross_entropy")])[0])
        loss, _ = plain_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert trainer.optim_step("run", STEP)["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    # Adam with eps 1e-12 divides rounding noise by itself where a gradient is (nearly) zero, so the
    # comparison is of what the weights compute.
    batch = data.batch(5)
    got = result(trainer.forward_backward([LossRequest("run", 1, batch, "cross_entropy", forward_only=True)])[0])
    for output, expected in zip(got.outputs, plain_loss(model, batch)[1], strict=True):
        np.testing.assert_allclose(output["logprobs"], expected, atol=5e-4)
    run = trainer.runs["run"]
    named = unfuse(base.architecture, run.layout.tensors(run.values))
    expected_weights = dict(model.named_parameters())
    assert set(named) == set(expected_weights)


def gradient(trainer: TorchTrainer, run_id: str) -> torch.Tensor:
    gradients = trainer.runs[run_id].gradients
    assert gradients is not None
    return gradients


@pytest.mark.parametrize("rank", [4, 0])
def test_gradients_of_all_weights_do_not_depend_on_packing(
    rank: int, new_trainer: Callable[..., TorchTrainer], data: Any
) -> None:
    batch = data.batch(9)
    collected = []
    for tokens, checkpointing, chunks in [(4096, False, 1), (50, False, 1), (4096, True, 1), (4096, False, 9)]:
        trainer = new_trainer(tokens=tokens, checkpointing=checkpointing)
        trainer.create(RunSpec("run", "tiny", LoraSpec(rank=rank, seed=3)))
        outputs = []
        for part in np.array_split(np.arange(9), chunks):
            request = LossRequest("run", 1, [batch[i] for i in part], "cross_entropy")
            outputs += result(trainer.forward_backward([request])[0]).outputs
        collected.append((gradient(trainer, "run"), np.concatenate([o["logprobs"] for o in outputs])))
    for other, logprobs in collected[1:]:
        torch.testing.assert_close(other, collected[0][0], atol=2e-5, rtol=1e-4)
        np.testing.assert_allclose(logprobs, collected[0][1], atol=1e-5)


def test_eight_runs_together_equal_each_alone(
    new_trainer: Callable[..., TorchTrainer], data: Any, disturbed: Callable[..., None]
) -> None:
    specs = {
        f"run{i}": LoraSpec(rank=[1, 4, 8, 16][i % 4], seed=i + 1, train_unembed=i % 2 == 0, train_mlp=i % 3 != 0)
        for i in range(8)
    }
    losses = ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "cross_entropy", "ppo", "cispo"]
    requests = []
    for i, run_id in enumerate(specs):
        batch = data.batch(4) if losses[i] == "cross_entropy" else [data.policy_datum(n) for n in (5, 17, 9)]
        requests.append(LossRequest(run_id, 1, batch, losses[i]))
    together = new_trainer(tokens=150)
    for run_id, spec in specs.items():
        disturbed(together, run_id, spec)
    joint = [result(r) for r in together.forward_backward(requests)]
    for request, shared in zip(requests, joint, strict=True):
        alone = new_trainer()
        disturbed(alone, request.run_id, specs[request.run_id])
        single = result(alone.forward_backward([request])[0])
        assert shared.metrics["loss:sum"] == pytest.approx(single.metrics["loss:sum"], rel=1e-5, abs=1e-4)
        for a, b in zip(shared.outputs, single.outputs, strict=True):
            np.testing.assert_allclose(a["logprobs"], b["logprobs"], atol=1e-5)
        torch.testing.assert_close(
            gradient(together, request.run_id), gradient(alone, request.run_id), atol=1e-4, rtol=1e-4
        )


def test_losses_over_whole_sequences_join_a_batch_of_others(
    new_trainer: Callable[..., TorchTrainer], data: Any
) -> None:
    mask = np.ones(12, dtype=np.float32)
    gspo = LossRequest("a", 1, [data.policy_datum(12, sequence_ratio_mask=mask)], "gspo", {"clip_high_threshold": 9.0})
    other = LossRequest("b", 1, [data.policy_datum(20)], "ppo")
    joint, alone = new_trainer(), new_trainer()
    for trainer in (joint, alone):
        for run_id in ("a", "b"):
            trainer.create(RunSpec(run_id, "tiny", LoraSpec(rank=4, seed=5)))
    results = [result(r) for r in joint.forward_backward([gspo, other])]
    singles = [result(alone.forward_backward([r])[0]) for r in (gspo, other)]
    for a, b in zip(results, singles, strict=True):
        assert a.metrics["loss:sum"] == pytest.approx(b.metrics["loss:sum"], rel=1e-6)
    for run_id in ("a", "b"):
        torch.testing.assert_close(gradient(joint, run_id), gradient(alone, run_id), atol=1e-5, rtol=1e-4)
        assert gradient(joint, run_id).abs().max() > 0


def test_soft_targets_dense_and_sparse_equal_one_target_calls(
    new_trainer: Callable[..., TorchTrainer], data: Any
) -> None:
    tokens = data.tokens(10)
    targets = data.rng.integers(0, 512, (10, 3)).astype(np.int64)
    weights = data.rng.random((10, 3)).astype(np.float32)
    weights[4] = 0
    dense = Datum(tokens, {"target_tokens": targets, "weights": weights})
    rows, columns = np.nonzero(weights)
    crow = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=10))]).astype(np.int64)
    csr = [CsrArray(v[rows, columns], crow, columns.astype(np.int64), (10, 3)) for v in (targets, weights)]
    sparse = Datum(tokens, {"target_tokens": csr[0], "weights": csr[1]})
    singles = [Datum(tokens, {"target_tokens": targets[:, k], "weights": weights[:, k]}) for k in range(3)]
    gradients, outputs = [], []
    for batch in ([dense], [sparse], singles, [dense, singles[0]]):
        trainer = new_trainer()
        trainer.create(RunSpec("run", "tiny", LoraSpec(rank=4, seed=2)))
        outputs.append(result(trainer.forward_backward([LossRequest("run", 1, batch, "cross_entropy")])[0]).outputs)
        gradients.append(gradient(trainer, "run"))
    assert outputs[0][0]["logprobs"].shape == (10, 3)
    np.testing.assert_allclose(outputs[0][0]["logprobs"][:, 1], outputs[2][1]["logprobs"], atol=1e-6)
    np.testing.assert_allclose(outputs[3][1]["logprobs"], outputs[2][0]["logprobs"], atol=1e-6)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gradients[2], gradients[0], atol=1e-5, rtol=1e-4)


def test_bfloat16_weights_stay_close_to_float32(
    tiny_base: Callable[..., BaseModel], new_trainer: Any, data: Any
) -> None:
    batch = data.batch(8)
    outcomes = []
    for dtype in (torch.float32, torch.bfloat16):
        trainer = new_trainer(model=tiny_base("qwen3", False, dtype))
        trainer.create(RunSpec("run", "tiny", LoraSpec(rank=4, seed=2)))
        outputs = result(trainer.forward_backward([LossRequest("run", 1, batch, "cross_entropy")])[0]).outputs
        assert trainer.runs["run"].values.dtype == gradient(trainer, "run").dtype == torch.float32
        outcomes.append((gradient(trainer, "run"), np.concatenate([o["logprobs"] for o in outputs])))
    assert np.abs(outcomes[0][1] - outcomes[1][1]).max() < 0.1
    cosine = torch.nn.functional.cosine_similarity(outcomes[0][0], outcomes[1][0], dim=0)
    assert cosine > 0.999
