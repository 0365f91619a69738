"""What a trainer does with accumulation, empty steps, bad requests and extreme numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tinker_backend.runtime import head
from tinker_backend.runtime.roles import (
    CsrArray,
    LoraSpec,
    LossRequest,
    LossResult,
    OptimParams,
    RunSpec,
    RuntimeFault,
)
from tinker_backend.runtime.torch_trainer import TorchTrainer

NewTrainer = Callable[..., TorchTrainer]


def with_run(trainer: TorchTrainer, run_id: str = "run", **lora: Any) -> TorchTrainer:
    trainer.create(RunSpec(run_id, "tiny", LoraSpec(**({"rank": 4, "seed": 3} | lora))))
    return trainer


def test_a_forward_leaves_no_gradient_and_equals_the_backward_pass(
    new_trainer: NewTrainer, data: Any, cross_entropy: Any
) -> None:
    trainer, batch = with_run(new_trainer()), data.batch(4)
    (forward,) = trainer.forward_backward([cross_entropy("run", batch, forward_only=True)])
    assert trainer.runs["run"].gradients is None
    (backward,) = trainer.forward_backward([cross_entropy("run", batch)])
    assert isinstance(forward, LossResult) and isinstance(backward, LossResult)
    assert forward.metrics["loss:sum"] == pytest.approx(backward.metrics["loss:sum"], rel=1e-6)
    for a, b in zip(forward.outputs, backward.outputs, strict=True):
        np.testing.assert_allclose(a["logprobs"], b["logprobs"], atol=1e-6)


@pytest.mark.parametrize("rank", [4, 0])
@pytest.mark.parametrize("loss_fn", ["cross_entropy", "importance_sampling", "gspo"])
def test_logits_in_chunks_change_nothing(
    rank: int, loss_fn: str, new_trainer: NewTrainer, data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run or two in a pass, losses over positions and over whole sequences, chunks that end inside of both."""
    kinds = {"cross_entropy": data.datum, "importance_sampling": data.policy_datum}
    mask = {"sequence_ratio_mask": np.ones(33, dtype=np.float32)}
    batch = [kinds[loss_fn](n) if loss_fn in kinds else data.policy_datum(33, **mask) for n in (40, 7, 61)]
    found = []
    for rows in (10_000, 16):
        monkeypatch.setattr(head, "_CHUNK_BYTES", 0)
        monkeypatch.setattr(head, "_FEWEST_ROWS", rows)
        trainer = with_run(with_run(new_trainer(), rank=rank), "other", rank=rank, seed=4)
        results = trainer.forward_backward([LossRequest(run_id, 1, batch, loss_fn) for run_id in ("run", "other")])
        gradients = [trainer.runs[run_id].gradients for run_id in ("run", "other")]
        found.append((results, gradients))
    (whole, whole_gradients), (chunked, chunked_gradients) = found
    for a, b in zip(whole, chunked, strict=True):
        assert isinstance(a, LossResult) and isinstance(b, LossResult)
        assert a.metrics["loss:sum"] == pytest.approx(b.metrics["loss:sum"], rel=1e-5)
        assert a.metrics["loss_tokens:sum"] == b.metrics["loss_tokens:sum"]
        for x, y in zip(a.outputs, b.outputs, strict=True):
            np.testing.assert_allclose(x["logprobs"], y["logprobs"], atol=1e-5)
    for g, h in zip(whole_gradients, chunked_gradients, strict=True):
        torch.testing.assert_close(g, h, atol=1e-4, rtol=1e-4)


def test_a_step_without_gradients_changes_nothing_and_says_so(new_trainer: NewTrainer) -> None:
    trainer = with_run(new_trainer())
    before = trainer.runs["run"].values.clone()
    metrics = trainer.optim_step("run", OptimParams(weight_decay=0.5))
    assert metrics["skipped_no_gradients"] == 1.0
    assert torch.equal(trainer.runs["run"].values, before) and trainer.runs["run"].step == 0


def test_a_step_consumes_the_gradients(new_trainer: NewTrainer, data: Any, cross_entropy: Any) -> None:
    trainer = with_run(new_trainer())
    trainer.forward_backward([cross_entropy("run", data.batch(3))])
    assert "skipped_no_gradients" not in trainer.optim_step("run", OptimParams())
    assert trainer.optim_step("run", OptimParams())["skipped_no_gradients"] == 1.0


def test_losses_are_sums_so_double_weights_double_the_gradient(
    new_trainer: NewTrainer, data: Any, cross_entropy: Any
) -> None:
    batch = data.batch(3)
    doubled = [replace(d, inputs={**d.inputs, "weights": 2 * d.inputs["weights"]}) for d in batch]
    norms = []
    for given in (batch, doubled):
        trainer = with_run(new_trainer())
        trainer.forward_backward([cross_entropy("run", given)])
        norms.append(trainer.optim_step("run", OptimParams())["grad_norm"])
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-5)


def test_missing_weights_count_every_token_once(new_trainer: NewTrainer, data: Any, cross_entropy: Any) -> None:
    plain = data.datum(9, weighted=False)
    ones = replace(plain, inputs={**plain.inputs, "weights": np.ones(9, dtype=np.float32)})
    trainer = with_run(new_trainer())
    a, b = trainer.forward_backward([cross_entropy("run", [plain]), cross_entropy("run", [ones])])
    assert isinstance(a, LossResult) and isinstance(b, LossResult)
    assert a.metrics == b.metrics
    assert a.metrics["tokens:sum"] == a.metrics["loss_tokens:sum"] == 9


def test_seeds_choose_the_adapter(new_trainer: NewTrainer) -> None:
    trainer = new_trainer()
    for run_id, seed in (("a", 1), ("b", 1), ("c", 2), ("d", None), ("e", None)):
        with_run(trainer, run_id, seed=seed)
    values = {run_id: run.values for run_id, run in trainer.runs.items()}
    assert torch.equal(values["a"], values["b"])
    assert not torch.equal(values["a"], values["c"])
    assert not torch.equal(values["d"], values["e"])


@pytest.mark.parametrize(
    ("lora", "modules"),
    [
        ({"train_attn": False, "train_unembed": False}, {"gate_proj", "up_proj", "down_proj"}),
        ({"train_mlp": False, "train_unembed": False}, {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ({"train_attn": False, "train_mlp": False}, {"lm_head"}),
    ],
)
def test_only_the_named_parts_are_adapted(lora: dict[str, bool], modules: set[str], new_trainer: NewTrainer) -> None:
    run = with_run(new_trainer(), **lora).runs["run"]
    assert {name.split(".")[-3] for name in run.layout.tensors(run.values)} == modules


def test_sampler_and_learner_logprobs_are_compared_in_the_metrics(new_trainer: NewTrainer, data: Any) -> None:
    trainer = with_run(new_trainer())
    datum = data.policy_datum(12)
    datum.inputs["advantages"][:4] = 0
    (got,) = trainer.forward_backward([LossRequest("run", 1, [datum], "importance_sampling")])
    assert isinstance(got, LossResult)
    gap = (datum.inputs["logprobs"] - got.outputs[0]["logprobs"])[4:]
    assert got.metrics["kl_sample_train_v1:mean"] == pytest.approx(gap.mean(), rel=1e-4)
    assert got.metrics["kl_sample_train_v2:mean"] == pytest.approx((gap**2).mean() / 2, rel=1e-4)
    assert got.metrics["loss_tokens:sum"] == 8


def bad_requests(data: Any) -> dict[str, tuple[LossRequest, str]]:
    good = data.policy_datum(8)
    ppo = LossRequest("run", 1, [good], "ppo")

    def changed(**inputs: Any) -> LossRequest:
        return replace(ppo, data=[replace(good, inputs={**good.inputs, **inputs})])

    nan = good.inputs["advantages"].copy()
    nan[3] = np.nan
    without = {k: v for k, v in good.inputs.items() if k != "advantages"}
    crow = np.array([0, 5, 3, 3, 3, 3, 3, 3, 3])
    broken = CsrArray(np.array([1, 2, 3]), crow, np.array([0, 1, 9]), (8, 2))
    return {
        "token": (replace(ppo, data=[replace(good, tokens=np.full(8, 512, dtype=np.int32))]), "512.*vocabulary of 512"),
        "target": (changed(target_tokens=np.full(8, -1)), "-1.*vocabulary"),
        "length": (changed(advantages=np.zeros(7, dtype=np.float32)), r"advantages.*\(7,\)"),
        "nan": (changed(advantages=nan), "advantages holds NaN"),
        "missing": (replace(ppo, data=[replace(good, inputs=without)]), "ppo needs advantages"),
        "surplus": (changed(weights=np.ones(8, dtype=np.float32)), "takes no input 'weights'"),
        "empty": (replace(ppo, data=[]), "at least one datum"),
        "long": (replace(ppo, data=[data.policy_datum(257)]), "257 tokens; between 1 and 256"),
        "config": (replace(ppo, config={"epsilon": 0.2}), "'epsilon' is unknown.*clip_low_threshold"),
        "order": (replace(ppo, config={"clip_low_threshold": 2.0}), "absolute probability ratios"),
        "name": (replace(ppo, loss_fn="reinforce"), "'reinforce' is unknown.*cross_entropy"),
        "sparse": (
            LossRequest("run", 1, [replace(good, inputs={"target_tokens": broken})], "cross_entropy"),
            "malformed",
        ),
        "absent run": (replace(ppo, run_id="nobody"), "nobody"),
    }


BAD = [
    "token",
    "target",
    "length",
    "nan",
    "missing",
    "surplus",
    "empty",
    "long",
    "config",
    "order",
    "name",
    "sparse",
] + ["absent run"]


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_refused_by_name_and_harms_no_other(
    case: str, new_trainer: NewTrainer, data: Any, cross_entropy: Any
) -> None:
    bad, message = bad_requests(data)[case]
    good = cross_entropy("other", data.batch(3))
    trainer = with_run(with_run(new_trainer()), "other")
    results = trainer.forward_backward([bad, good])
    assert isinstance(results[0], RuntimeFault)
    with pytest.raises(RuntimeFault, match=message):
        raise results[0]
    alone = with_run(new_trainer(), "other")
    (expected,) = alone.forward_backward([good])
    assert isinstance(results[1], LossResult) and isinstance(expected, LossResult)
    assert results[1].metrics == pytest.approx(expected.metrics)
    assert trainer.runs["run"].gradients is None


def test_a_gradient_that_overflows_is_refused_and_the_run_lives_on(
    new_trainer: NewTrainer, data: Any, cross_entropy: Any
) -> None:
    trainer = with_run(with_run(new_trainer()), "other")
    datum = data.policy_datum(6)
    datum.inputs["logprobs"][:] = -1e4
    results = trainer.forward_backward(
        [LossRequest("run", 1, [datum], "importance_sampling"), cross_entropy("other", data.batch(2))]
    )
    assert isinstance(results[0], RuntimeFault) and "not finite" in str(results[0])
    assert isinstance(results[1], LossResult)
    assert trainer.runs["run"].gradients is None and trainer.runs["other"].gradients is not None
    assert isinstance(trainer.forward_backward([cross_entropy("run", data.batch(2))])[0], LossResult)


def test_a_gradient_that_overflows_takes_no_neighbour_of_its_run_along(
    new_trainer: NewTrainer, data: Any, cross_entropy: Any
) -> None:
    batch, others = data.batch(3), data.batch(2)
    datum = data.policy_datum(6)
    datum.inputs["logprobs"][:] = -1e4
    bad = LossRequest("run", 2, [datum], "importance_sampling")
    good = [replace(cross_entropy("run", batch), seq_id=1), replace(cross_entropy("run", others), seq_id=3)]
    trainer = with_run(new_trainer())
    first, refused, last = trainer.forward_backward([good[0], bad, good[1]])
    assert isinstance(first, LossResult) and isinstance(last, LossResult)
    assert isinstance(refused, RuntimeFault) and "not finite" in str(refused)
    alone = with_run(new_trainer())
    alone.forward_backward(good)
    torch.testing.assert_close(trainer.runs["run"].gradients, alone.runs["run"].gradients)


def test_a_step_with_eps_0_leaves_weights_without_a_gradient_alone(
    new_trainer: NewTrainer, data: Any, cross_entropy: Any
) -> None:
    trainer = with_run(new_trainer())
    before = trainer.runs["run"].values.clone()
    trainer.forward_backward([cross_entropy("run", data.batch(2))])  # at the start lora_A has no gradient
    trainer.optim_step("run", OptimParams(0.01, 0.9, 0.95, 0.0, 0.0, 0.0))
    change = (trainer.runs["run"].values - before).abs()
    assert bool(torch.isfinite(change).all())
    assert bool((change == 0).any()) and float(change.max()) == pytest.approx(0.01, rel=1e-3)


def test_a_failure_inside_the_shared_pass_fails_the_culprit_alone(
    new_trainer: NewTrainer, data: Any, cross_entropy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tinker_backend.runtime.losses import LOSS_FUNCTIONS

    def explode(*_: Any) -> None:
        raise MemoryError("no memory for this loss")

    monkeypatch.setitem(LOSS_FUNCTIONS, "dro", explode)
    trainer, batch = with_run(with_run(new_trainer()), "other"), data.batch(3)
    results = trainer.forward_backward(
        [LossRequest("run", 1, [data.policy_datum(5)], "dro"), cross_entropy("other", batch)]
    )
    assert isinstance(results[0], RuntimeFault) and results[0].category == "server"
    assert isinstance(results[1], LossResult)
    alone = with_run(new_trainer(), "other")
    alone.forward_backward([cross_entropy("other", batch)])
    assert trainer.runs["run"].gradients is None
    torch.testing.assert_close(trainer.runs["other"].gradients, alone.runs["other"].gradients)


def test_impossible_runs_are_refused(new_trainer: NewTrainer) -> None:
    trainer = new_trainer()
    for spec, message in [
        (RunSpec("r", "tiny", LoraSpec(rank=65)), "rank 65.*1 to 64"),
        (RunSpec("r", "huge", LoraSpec()), "'huge' is not served; served: tiny"),
        (RunSpec("r", "tiny", LoraSpec(train_attn=False, train_mlp=False, train_unembed=False)), "at least one"),
        (RunSpec("r", "tiny", LoraSpec(), optimizer="dimuon"), "dimuon"),
    ]:
        with pytest.raises(RuntimeFault, match=message) as caught:
            trainer.create(spec)
        assert caught.value.category == "user"
    assert not trainer.runs


def test_a_long_datum_fits_although_it_exceeds_the_token_budget(
    new_trainer: NewTrainer, data: Any, cross_entropy: Any
) -> None:
    trainer = with_run(new_trainer(tokens=32))
    (got,) = trainer.forward_backward([cross_entropy("run", [data.datum(200), data.datum(3)])])
    assert isinstance(got, LossResult) and got.metrics["tokens:sum"] == 203
