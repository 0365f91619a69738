"""Where the batches of each mode come from: what is trained on when, while groups are still being sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chz
import numpy as np
import pytest
from test_rl_train import BAD, GOOD, MODES, STOP, Builder, Questions, config

from tinker_cookbook.rl import train
from tinker_cookbook.rl.batch_source import AsyncWindowSource, Minibatch, minibatch_sizes
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, Trajectory, TrajectoryGroup


@pytest.fixture
def service(fake_service: Any) -> Any:
    fake_service.allowed = np.asarray([GOOD, BAD, STOP])
    return fake_service


@pytest.mark.parametrize(
    ("groups", "substeps", "minibatches", "sizes"),
    [
        (4, 1, 2, [(2, False), (2, True)]),
        (4, 2, 2, [(1, False), (1, True), (1, False), (1, True)]),
        (5, 1, 2, [(2, False), (3, True)]),
        (3, 2, 2, [(1, False), (1, True), (1, True)]),
        (0, 1, 2, []),
    ],
)
def test_a_step_is_divided_in_nearly_equal_minibatches_and_ends_with_an_optimizer_step(
    groups: int, substeps: int, minibatches: int, sizes: list[tuple[int, bool]]
) -> None:
    assert minibatch_sizes(groups, substeps, minibatches) == sizes


class Window:
    """A source of the async mode whose groups are done when the test says so."""

    def __init__(self, num_minibatches: int | None, num_substeps: int = 1, in_order: bool = False) -> None:
        self.started: list[int] = []
        self.done: dict[int, asyncio.Event] = {}
        self.dropped: set[int] = set()
        self.source = AsyncWindowSource(
            Questions(3, 4, 1), self.sample, num_substeps, 4, 1, 0, 3, in_order, num_minibatches
        )

    async def sample(self, _: Any, builder: Any, batch: int, index: int) -> TrajectoryGroup | None:
        number = batch * 4 + index
        self.started.append(number)
        await self.done.setdefault(number, asyncio.Event()).wait()
        return None if number in self.dropped else TrajectoryGroup([Trajectory([], None)], [0.0], [{}])  # type: ignore[arg-type]

    async def finish(self, *numbers: int) -> None:
        for number in numbers:
            self.done.setdefault(number, asyncio.Event()).set()
        for _ in range(5):
            await asyncio.sleep(0)

    def step(self, number: int) -> Any:
        self.source.set_sampler(object(), number)  # type: ignore[arg-type]
        return self.source.minibatches(number)


def numbers(minibatch: Minibatch) -> tuple[list[int], int]:
    """The groups, by the number in the run, and the optimizer steps."""
    return [group.env_group_builder.question - 30 for group in minibatch.groups], minibatch.optim_steps  # type: ignore[attr-defined]


async def test_minibatches_of_the_async_mode_are_trained_while_others_are_sampled() -> None:
    window = Window(num_minibatches=2)
    step = window.step(0)
    first = asyncio.ensure_future(anext(step))
    await window.finish(6)
    assert window.started == list(range(8)) and not first.done()
    await window.finish(1)
    assert numbers(await first) == ([1, 6], 0)
    await window.finish(0, 7, 2)
    assert numbers(await anext(step)) == ([0, 2], 1)  # 7 is done, too, but younger
    assert window.started == list(range(8))  # the window moves on with the step, not before
    assert await anext(step, None) is None
    step = window.step(1)
    await window.finish(3)
    assert window.started == list(range(12))
    assert numbers(await anext(step)) == ([3, 7], 0)
    await window.source.close()


async def test_minibatches_of_a_seeded_run_come_in_the_order_of_the_data() -> None:
    window = Window(num_minibatches=2, in_order=True)
    step = window.step(0)
    await window.finish(3, 2, 1)
    first = asyncio.ensure_future(anext(step))
    await asyncio.sleep(0)
    assert not first.done()
    await window.finish(0)
    assert [numbers(await first), numbers(await anext(step))] == [([0, 1], 0), ([2, 3], 1)]
    await window.source.close()


async def test_gradients_of_a_minibatch_get_their_step_when_the_rest_cannot_be_used() -> None:
    window = Window(num_minibatches=2, in_order=True)
    window.dropped = {2, 3}
    step = window.step(0)
    await window.finish(0, 1, 2, 3)
    assert [numbers(minibatch) async for minibatch in step] == [([0, 1], 0), ([], 1)]
    await window.source.close()


async def test_without_minibatches_the_async_mode_trains_on_the_whole_batch() -> None:
    window = Window(num_minibatches=None, num_substeps=3)
    await window.finish(*range(12))
    assert [numbers(minibatch) async for minibatch in window.step(0)] == [([0, 1, 2, 3], 3)]
    await window.source.close()


class Late(Builder):
    """Groups that are done in another order in every run."""

    rng = np.random.default_rng()

    async def make_envs(self) -> Sequence[Env]:
        await asyncio.sleep(float(self.rng.uniform(0, 0.01)))
        return await super().make_envs()


class LateQuestions(Questions):
    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [Late(30 + index * self.groups + i, self.size) for i in range(self.groups)]


@chz.chz
class LateBuilder(RLDatasetBuilder):
    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        return LateQuestions(5, 4, 8), None


@pytest.mark.parametrize("mode", sorted(MODES))
async def test_a_seeded_run_can_be_repeated_whatever_is_done_first(mode: str, service: Any, tmp_path: Path) -> None:
    weights = []
    for name in ("a", "b"):
        await train.main(config(tmp_path / name, dataset_builder=LateBuilder(), **MODES[mode]))
        weights.append(service.last_client.state.logits.copy())
    np.testing.assert_array_equal(*weights)
