"""Distillation numbers against independent computations, and its loops against a service in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_service import SamplingClient, Service, log_softmax

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.distillation import sdft, sdft_data, top_k, train_off_policy, train_on_policy
from tinker_cookbook.distillation.datasets import (
    DistillationDatasetConfig,
    PromptOnlyDatasetBuilder,
    PromptOnlyEnv,
    TeacherConfig,
)
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.data_processing import assemble_training_data
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, Trajectory, TrajectoryGroup, Transition
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


def one_turn(rng: np.random.Generator) -> TrajectoryGroup:
    prompt, action = rng.integers(1, 60, 4).tolist(), rng.integers(1, 60, 7).tolist()
    logprobs = (-rng.random(7)).tolist()
    turn = Transition(tinker.ModelInput.from_ints(prompt), TokensWithLogprobs(action, logprobs), 0.0, True)
    return TrajectoryGroup([Trajectory([turn], tinker.ModelInput.empty())], [0.0], [{}])


def teacher_of(tokenizer: Any, rng: np.random.Generator) -> SamplingClient:
    return SamplingClient(Service(tokenizer), rng.normal(size=(1600, 1600)))


@pytest.mark.parametrize("seed", range(5))
async def test_teacher_term_equals_its_formula(seed: int, universal_tokenizer: Any) -> None:
    rng = np.random.default_rng(seed)
    groups = [one_turn(rng), one_turn(rng)]
    teachers = [teacher_of(universal_tokenizer, rng), teacher_of(universal_tokenizer, rng)]
    data, _ = assemble_training_data(groups, [[0.0], [0.0]])
    metrics = await train_on_policy.incorporate_kl_penalty(data, teachers, [0, 1], 0.7, 0.0)  # type: ignore[arg-type]
    kls = []
    for group, teacher, datum in zip(groups, teachers, data, strict=True):
        turn = group.trajectories_G[0].transitions[0]
        ids = [*turn.ob.to_ints(), *turn.ac.tokens]
        scores = teacher.score(ids)[-len(turn.ac.tokens) :]
        expected = [-0.7 * (q - p) for q, p in zip(turn.ac.logprobs, scores, strict=True)]
        got = datum.loss_fn_inputs["advantages"].to_numpy()
        np.testing.assert_allclose(got[-len(expected) :], expected, rtol=1e-4, atol=1e-5)
        assert not got[: -len(expected)].any()
        kls.append(float(np.mean(np.subtract(turn.ac.logprobs, scores))))
    assert metrics["teacher_kl/dataset_1"] == pytest.approx(kls[1], rel=1e-5)
    assert metrics["teacher_kl"] == pytest.approx(np.mean(kls), rel=1e-5)


@pytest.mark.parametrize("seed", range(5))
async def test_sdft_targets_are_the_teachers_top_k_after_the_demonstration(seed: int, universal_tokenizer: Any) -> None:
    rng = np.random.default_rng(seed)
    group, teacher, k, skip = one_turn(rng), teacher_of(universal_tokenizer, rng), 5, 2
    data, metadata = assemble_training_data([group], [[0.0]])
    prompt = tinker.ModelInput.from_ints(rng.integers(1, 60, 9).tolist())
    out, metrics = await sdft_data.build_topk_distillation_datums(
        data,
        metadata,
        teacher,
        [prompt],
        k,
        1000,
        1600,
        skip_first_n_tokens=skip,  # type: ignore[arg-type]
    )
    turn = group.trajectories_G[0].transitions[0]
    sequence = [*prompt.to_ints(), *turn.ac.tokens]
    targets = out[0].loss_fn_inputs["target_tokens"].to_numpy()
    weights = out[0].loss_fn_inputs["weights"].to_numpy()
    assert out[0].model_input == data[0].model_input
    first = turn.ob.length - 1
    for number in range(len(turn.ac.tokens)):
        row = weights[first + number]
        if number < skip:
            assert not row.any()
            continue
        lp = log_softmax(teacher.logits[sequence[prompt.length + number - 1]])
        best = sorted(range(1600), key=lambda t: -lp[t])[:k]
        p = np.exp(lp[best])
        assert targets[first + number].tolist() == best
        np.testing.assert_allclose(row, p / p.sum(), rtol=1e-5)
    assert not weights[:first].any()
    assert metrics["sdft/num_datums"] == 1 and metrics["sdft/topk"] == k
    cut, cut_metrics = await sdft_data.build_topk_distillation_datums(
        data,
        metadata,
        teacher,
        [prompt],
        k,
        prompt.length + 4,
        1600,
        skip_first_n_tokens=skip,  # type: ignore[arg-type]
    )
    assert cut_metrics["sdft/teacher_truncated_count"] == 1
    assert int((cut[0].loss_fn_inputs["weights"].to_numpy().sum(axis=1) > 0).sum()) == 4 - skip


def test_reverse_kl_equals_its_formula_and_is_zero_at_the_teacher() -> None:
    import torch

    rng = np.random.default_rng(0)
    weights = rng.random((4, 3)).astype(np.float32)
    weights[0] = 0
    weights[3, 2] = 0
    weights[1:] /= weights[1:].sum(axis=1, keepdims=True)
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1, 2, 3, 4]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData.from_numpy(np.zeros((4, 3), dtype=np.int64)),
            "weights": tinker.TensorData.from_numpy(weights),
        },
    )
    student = rng.normal(size=(4, 3)).astype(np.float32)
    loss, metrics = sdft.reverse_kl_custom_loss([datum], [torch.tensor(student, requires_grad=True)])
    expected = 0.0
    for row in range(1, 4):
        live = [j for j in range(3) if weights[row, j] > 0]
        p = np.exp(student[row, live]) / np.exp(student[row, live]).sum()
        expected += float(sum(p * (np.log(p) - np.log(weights[row, live]))))
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    assert metrics["sdft/reverse_kl_mean"] == pytest.approx(expected / 3, rel=1e-4)
    same = torch.tensor(np.log(np.maximum(weights, 1e-30)), requires_grad=True)
    at_teacher, _ = sdft.reverse_kl_custom_loss([datum], [same])
    at_teacher.backward()
    assert float(at_teacher) == pytest.approx(0, abs=1e-5)
    assert same.grad is not None and float(same.grad.abs().max()) < 1e-5


def test_soft_targets_drop_missing_entries() -> None:
    rows = [[(3, -1.0), (4, -1.0), (0, -99999.0)], []]
    datum = top_k.soft_target_datum(tinker.ModelInput.from_ints([1, 2]), rows, [2.0, 1.0], 3)
    np.testing.assert_allclose(datum.loss_fn_inputs["weights"].to_numpy(), [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])


# Loops


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"n{i}"}) for i in range(16)))
    return path


def saved_teacher(service: Any) -> str:
    """A checkpoint whose policy strongly prefers three tokens."""
    from fake_service import State

    state = State()
    state.logits[:, [40, 41, 42]] += 8.0
    service.saved["tinker://fake/sampler_weights/teacher"] = state
    return "tinker://fake/sampler_weights/teacher"


async def test_on_policy_distillation_moves_the_student_to_its_teacher(
    fake_service: Any, prompts: Path, tmp_path: Path, universal_tokenizer_path: str
) -> None:
    fake_service.allowed = np.asarray([40, 41, 42, 50, 51])
    builder = PromptOnlyDatasetBuilder(
        dataset_name=str(prompts),
        groups_per_batch=2,
        group_size=8,
        model_name_for_tokenizer=universal_tokenizer_path,
        renderer_name="qwen3_instruct",
    )
    teacher = TeacherConfig(base_model="tiny", load_checkpoint_path=saved_teacher(fake_service))
    config = train_on_policy.Config(
        learning_rate=0.5,
        dataset_configs=[
            DistillationDatasetConfig(dataset_builder=builder, teacher_config=teacher, groups_per_batch=2)
        ],
        model_name="tiny",
        max_tokens=4,
        log_path=str(tmp_path / "run"),
        eval_every=0,
        sampling_seed=1,
    )
    await train_on_policy.main(config)
    metrics = rows_of(tmp_path / "run")
    assert len(metrics) == 8 and all("teacher_kl/dataset_0" in row for row in metrics)
    student = fake_service.last_client.state.logits
    trained = np.flatnonzero(np.abs(student).sum(axis=1) > 0)
    assert len(trained)
    assert student[trained][:, [40, 41, 42]].mean() > student[trained][:, [50, 51]].mean() + 0.5


async def test_off_policy_distillation_lowers_the_forward_kl(
    fake_service: Any, tmp_path: Path, universal_tokenizer_path: str
) -> None:
    path = tmp_path / "chat.jsonl"
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a b c d e"}]}
    path.write_text("\n".join([json.dumps(row)] * 8))
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=universal_tokenizer_path, renderer_name="qwen3_instruct", max_length=64, batch_size=4
    )
    dataset = train_off_policy.DatasetWithTeacher(
        dataset_builder=FromConversationFileBuilder(common_config=common, file_path=str(path)),
        teacher_config=TeacherConfig(base_model="tiny", load_checkpoint_path=saved_teacher(fake_service)),
    )
    config = train_off_policy.Config(
        learning_rate=0.4,
        dataset_configs=[dataset],
        model_name="tiny",
        log_path=str(tmp_path / "run"),
        n_teacher_targets=3,
        num_epochs=6,
        eval_every=0,
    )
    await train_off_policy.main(config)
    metrics = [row for row in rows_of(tmp_path / "run") if "distill/forward_kl" in row]
    assert metrics[-1]["distill/forward_kl"] < 0.5 * metrics[0]["distill/forward_kl"]
    assert all(row["distill/forward_kl"] > -1e-6 for row in metrics)


class Provider:
    def __init__(self, renderer: Any, batches: int = 6) -> None:
        self.renderer, self.batches = renderer, batches

    def get_batch(self, index: int) -> tuple[Sequence[EnvGroupBuilder], Sequence[str], Sequence[str]]:
        questions = [f"q{index}{i}" for i in range(2)]
        builders = [ProblemGroupBuilder(partial(PromptOnlyEnv, q, self.renderer), 2, "sdft") for q in questions]
        return builders, questions, ["golden"] * 2

    def __len__(self) -> int:
        return self.batches


@pytest.mark.parametrize("topk,reverse", [(3, False), (3, True), (0, False)])
async def test_sdft_runs_in_all_three_forms(
    topk: int, reverse: bool, fake_service: Any, tmp_path: Path, universal_tokenizer: Any
) -> None:
    config = sdft.Config(
        model_name="tiny",
        learning_rate=0.1,
        max_tokens=6,
        log_path=str(tmp_path),
        renderer_name="qwen3_instruct",
        topk=topk,
        reverse=reverse,
        eval_every=0,
        skip_first_n_tokens=1,
        teacher_sync_every=2,
    )
    await sdft.main(config, Provider(get_renderer("qwen3_instruct", universal_tokenizer)))
    metrics = rows_of(tmp_path)
    assert len(metrics) == 6
    assert metrics[0]["sdft/num_datums"] == 4 and metrics[0]["sdft/total_completion_tokens"] > 0
    assert fake_service.calls.count("optim_step") == 6
    assert ("sdft/reverse_kl_mean" in metrics[0]) == reverse
    expected = "forward_backward_custom" if reverse else "forward_backward"
    assert fake_service.calls.count(expected) == 6
