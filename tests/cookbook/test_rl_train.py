"""The RL loop in all its modes, against a service in memory that really learns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chz
import numpy as np
import pytest

import tinker
from tinker_cookbook.completers import StopCondition, TokensWithLogprobs
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl import train
from tinker_cookbook.rl.rollout_strategy import MinViableGroup, RetryOnFailure, RolloutStrategy
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
)

GOOD, BAD, STOP = 20, 21, 22


class PickGood(Env):
    """Reward 1 when the first sampled token is GOOD."""

    def __init__(self, question: int) -> None:
        self.question = question

    async def initial_observation(self) -> tuple[tinker.ModelInput, StopCondition]:
        return tinker.ModelInput.from_ints([self.question, 5]), [STOP]

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        return StepResult(
            float(action[0] == GOOD), True, tinker.ModelInput.empty(), [STOP], {"picked": action[0] == GOOD}
        )


class Builder(EnvGroupBuilder):
    def __init__(self, question: int, size: int) -> None:
        self.question, self.size, self.cleaned = question, size, 0

    async def make_envs(self) -> Sequence[Env]:
        return [PickGood(self.question) for _ in range(self.size)]

    async def cleanup(self) -> None:
        self.cleaned += 1

    def logging_tags(self) -> list[str]:
        return ["even" if self.question % 2 == 0 else "odd"]


class Questions(RLDataset):
    def __init__(self, batches: int, groups: int, size: int) -> None:
        self.batches, self.groups, self.size = batches, groups, size

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [Builder(30 + index * self.groups + i, self.size) for i in range(self.groups)]

    def __len__(self) -> int:
        return self.batches


@chz.chz
class QuestionsBuilder(RLDatasetBuilder):
    batches: int = 6
    groups: int = 4
    size: int = 8
    test: bool = False

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        test = Questions(1, 4, 4) if self.test else None
        return Questions(self.batches, self.groups, self.size), test


def config(path: Path, **changes: Any) -> train.Config:
    defaults: dict[str, Any] = {
        "learning_rate": 0.3,
        "dataset_builder": QuestionsBuilder(),
        "model_name": "tiny",
        "max_tokens": 1,
        "log_path": str(path),
        "eval_every": 0,
        "save_every": 0,
        "sampling_seed": 7,
    }
    return train.Config(**{**defaults, **changes})


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def service(fake_service: Any) -> Any:
    fake_service.allowed = np.asarray([GOOD, BAD, STOP])
    return fake_service


MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "substeps": {"num_substeps": 2},
    "stream": {"stream_minibatch_config": train.StreamMinibatchConfig(groups_per_batch=4, num_minibatches=2)},
    "async": {"async_config": train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=4)},
}
MODES["async stream"] = {**MODES["async"], **MODES["stream"]}


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_every_mode_learns_and_writes_the_files_of_a_run(mode: str, service: Any, tmp_path: Path) -> None:
    await train.main(config(tmp_path, dataset_builder=QuestionsBuilder(batches=10), **MODES[mode]))
    assert service.named and all(names and names <= service.sampled for names in service.named)
    metrics = rows(tmp_path)
    assert [row["step"] for row in metrics] == list(range(10))
    assert metrics[-1]["env/all/reward/total"] > metrics[0]["env/all/reward/total"] + 0.2
    for key in (
        "progress/done_frac",
        "optim/lr",
        "optim/entropy",
        "optim/kl_sample_train_v1",
        "env/all/picked",
        "env/all/by_group/frac_mixed",
        "env/even/reward/total",
        "tokens/sampled",
        "tokens/cumulative/trained",
        "time/total",
    ):
        assert key in metrics[0], key
    assert all(metrics[0][key] == pytest.approx(metrics[0][key]) for key in metrics[0])
    for name in ("config.json", "code.diff", "logs.log", "checkpoints.jsonl", "timing_spans.jsonl"):
        assert (tmp_path / name).exists(), name
    for name in ("train.html", "train_logtree.json", "train_rollout_summaries.jsonl"):
        assert (tmp_path / "iteration_000000" / name).exists(), name
    steps = 20 if mode == "substeps" else 10
    assert service.calls.count("optim_step") == steps
    assert service.calls.count("forward_backward") == (10 if mode in ("sync", "async") else 20)
    if mode.startswith("async"):
        assert max(row["async/staleness_max"] for row in metrics) == 1
    assert json.loads((tmp_path / "checkpoints.jsonl").read_text().splitlines()[-1])["final"] is True


@pytest.mark.parametrize("mode", ["sync", "substeps", "stream"])
async def test_a_killed_and_resumed_run_gives_the_same_numbers(mode: str, service: Any, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    await train.main(config(whole, save_every=2, **MODES[mode]))
    expected = service.last_client.state.logits.copy()

    calls = 0

    def fail_late() -> Exception | None:
        nonlocal calls
        calls += 1
        return RuntimeError("killed") if calls > 150 else None

    service.sample_error = fail_late
    with pytest.raises(RuntimeError, match="killed"):
        await train.main(config(broken, save_every=2, **MODES[mode]))
    service.sample_error = None
    assert 0 < len(rows(broken)) < 6
    await train.main(config(broken, save_every=2, **MODES[mode]))
    np.testing.assert_allclose(service.last_client.state.logits, expected, atol=1e-12)
    skip = ("time/", "tokens/cumulative")
    for a, b in zip(rows(whole), rows(broken), strict=True):
        assert {k: v for k, v in a.items() if not k.startswith(skip)} == pytest.approx(
            {k: v for k, v in b.items() if not k.startswith(skip)}
        )


async def test_finished_runs_do_nothing_until_there_are_more_steps(service: Any, tmp_path: Path) -> None:
    await train.main(config(tmp_path, max_steps=2))
    calls = len(service.calls)
    await train.main(config(tmp_path, max_steps=2))
    assert len(service.calls) == calls
    await train.main(config(tmp_path, max_steps=4))
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3]


async def test_evaluation_runs_on_schedule_and_on_the_final_weights(service: Any, tmp_path: Path) -> None:
    await train.main(config(tmp_path, dataset_builder=QuestionsBuilder(batches=4, test=True), eval_every=3))
    evaluated = [row["step"] for row in rows(tmp_path) if "test/env/all/reward/total" in row]
    assert evaluated == [0, 3]
    assert (tmp_path / "iteration_000004" / "eval_test_logtree.json").exists()


async def test_reference_penalty_and_post_kl_are_logged(service: Any, tmp_path: Path) -> None:
    reference = train.KLReferenceConfig(base_model="tiny")
    await train.main(
        config(tmp_path, kl_penalty_coef=0.1, kl_reference_config=reference, compute_post_kl=True, max_steps=3)
    )
    last = rows(tmp_path)[-1]
    assert last["kl_policy_base"] > 0
    assert "kl_pre_post_v1" in last and "kl_pre_post_v2" in last


async def test_rolling_checkpoints_replace_one_another(service: Any, tmp_path: Path) -> None:
    await train.main(config(tmp_path, rolling_save_every=1, save_every=3))
    names = [json.loads(line)["name"] for line in (tmp_path / "checkpoints.jsonl").read_text().splitlines()]
    assert names == ["000001", "000002", "000003", "000004", "000005", "000006", "final"]
    assert [path.rsplit("/", 1)[1] for path in service.deleted] == ["000001", "000002", "000004", "000005"]


async def test_failing_rollouts_are_retried_or_end_the_run(service: Any, tmp_path: Path) -> None:
    count = 0

    def sometimes() -> Exception | None:
        nonlocal count
        count += 1
        return ConnectionError("lost") if count % 9 == 0 else None

    service.sample_error = sometimes
    with pytest.raises(ConnectionError):
        await train.main(config(tmp_path / "fail"))
    await train.main(config(tmp_path / "retry", rollout_error_tolerance=RetryOnFailure(max_retries=8)))
    assert sum(row.get("rollout_errors/ConnectionError", 0) for row in rows(tmp_path / "retry")) > 0
    service.sample_error = lambda: ConnectionError("lost")
    with pytest.raises((ConnectionError, AllTrajectoriesFailedError)):
        await train.main(config(tmp_path / "all"))


@pytest.mark.parametrize("strategy", [RetryOnFailure(), MinViableGroup(min_successful=1)])
async def test_a_run_that_is_ended_is_no_failure_of_a_rollout(strategy: RolloutStrategy) -> None:
    class Ends(PickGood):
        async def initial_observation(self) -> tuple[tinker.ModelInput, StopCondition]:
            raise asyncio.CancelledError

    class Group(Builder):
        async def make_envs(self) -> Sequence[Env]:
            return [Ends(0), PickGood(1)]

    async def policy(*_: Any, **__: Any) -> TokensWithLogprobs:
        return TokensWithLogprobs([GOOD], [-0.5])

    with pytest.raises(asyncio.CancelledError):
        await strategy.execute(Group(0, 2), policy)  # type: ignore[arg-type]


def test_contradicting_configurations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kl_reference_config"):
        config(tmp_path, kl_penalty_coef=0.1)
    with pytest.raises(ValueError, match="importance_sampling"):
        config(tmp_path, loss_fn="importance_samplin")
    with pytest.raises(ValueError, match="contradicts"):
        config(tmp_path, **MODES["async"], loss_fn="ppo")
    with pytest.raises(
        ValueError, match="async_config.groups_per_batch=4 and stream_minibatch_config.groups_per_batch=8"
    ):
        config(
            tmp_path,
            **MODES["async"],
            stream_minibatch_config=train.StreamMinibatchConfig(groups_per_batch=8, num_minibatches=2),
        )
