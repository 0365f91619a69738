"""Where training batches come from: the one thing in which the run modes differ.

A source gives, per training step, one or more minibatches of sampled groups. The training loop hands it every new
sampler.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import chz

import tinker
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.rl.metrics import SAMPLING_TIME
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, TrajectoryGroup

logger = logging.getLogger(__name__)

T = TypeVar("T")

# (sampler, builder, index of the batch, index in the batch) -> group, or None if it is not to be used
SampleGroup: TypeAlias = Callable[[tinker.SamplingClient, EnvGroupBuilder, int, int], Awaitable[TrajectoryGroup | None]]


@chz.chz
class WrappedTrajectoryGroup:
    """A sampled group with its builder, the training step whose weights sampled it, and the seconds that it took."""

    trajectory_group: TrajectoryGroup
    env_group_builder: EnvGroupBuilder
    sampling_client_step: int
    metrics: dict[str, Any] = chz.field(default_factory=dict)


@dataclass
class Minibatch:
    """Groups to train on. ``optim_steps``: 0 = only accumulate gradients; n = split the data in n consecutive parts
    and make an optimizer step after each."""

    groups: list[WrappedTrajectoryGroup]
    optim_steps: int


class BatchSource(ABC):
    """Gives minibatches. ``get_batch(step)`` are the group builders of a step."""

    def __init__(self, dataset: RLDataset, sample_group: SampleGroup, num_substeps: int) -> None:
        self._dataset = dataset
        self._sample_group = sample_group
        self._num_substeps = num_substeps
        self._sampler: tinker.SamplingClient | None = None
        self._sampler_step = 0

    def set_sampler(self, sampler: tinker.SamplingClient, step: int) -> None:
        """Use the weights of this training step for groups that start from now on."""
        self._sampler, self._sampler_step = sampler, step

    @abstractmethod
    def minibatches(self, step: int) -> AsyncIterator[Minibatch]:
        """Minibatches of a training step, in the order of training."""

    async def close(self) -> None:
        """Cancel what is still being sampled."""
        return None

    async def _sample(self, builder: EnvGroupBuilder, batch: int, index: int) -> WrappedTrajectoryGroup | None:
        assert self._sampler is not None
        sampler_step, started = self._sampler_step, time.monotonic()
        group = await self._sample_group(self._sampler, builder, batch, index)
        if group is None:
            return None
        return WrappedTrajectoryGroup(
            trajectory_group=group,
            env_group_builder=builder,
            sampling_client_step=sampler_step,
            metrics={SAMPLING_TIME: time.monotonic() - started},
        )


class SyncSource(BatchSource):
    """Sample the whole batch, then train on it."""

    async def minibatches(self, step: int) -> AsyncIterator[Minibatch]:
        builders = self._dataset.get_batch(step)
        groups = await gather_with_progress(
            [self._sample(builder, step, index) for index, builder in enumerate(builders)], f"sampling {step}"
        )
        kept = _usable(groups, step)
        if kept:
            yield Minibatch(kept, self._num_substeps)


class StreamMinibatchSource(BatchSource):
    """Train on groups in the order in which they finish, in minibatches, while others are still being sampled.

    ``in_order``: in the order of the batch instead, so that a seeded run can be repeated.
    """

    def __init__(
        self,
        dataset: RLDataset,
        sample_group: SampleGroup,
        num_substeps: int,
        num_minibatches: int,
        in_order: bool = False,
    ) -> None:
        super().__init__(dataset, sample_group, num_substeps)
        self._num_minibatches = num_minibatches
        self._in_order = in_order

    async def minibatches(self, step: int) -> AsyncIterator[Minibatch]:
        builders = self._dataset.get_batch(step)
        tasks = [asyncio.create_task(self._sample(builder, step, index)) for index, builder in enumerate(builders)]
        finishing: Iterator[Awaitable[WrappedTrajectoryGroup | None]]
        finishing = iter(tasks if self._in_order else asyncio.as_completed(tasks))
        untrained = False
        try:
            for size, ends_substep in minibatch_sizes(len(tasks), self._num_substeps, self._num_minibatches):
                groups = [await next(finishing) for _ in range(size)]
                kept = [group for group in groups if group is not None]
                if kept or (untrained and ends_substep):
                    untrained = not ends_substep
                    yield Minibatch(kept, int(ends_substep))
        finally:
            await _cancel(tasks)


def minibatch_sizes(groups: int, num_substeps: int, num_minibatches: int) -> list[tuple[int, bool]]:
    """Sizes of the minibatches of a step, nearly equal, and whether an optimizer step follows."""
    count = min(num_substeps * num_minibatches, groups)
    edges = [0, *(round(i * groups / count) for i in range(1, count + 1))]
    return [
        (edges[part] - edges[part - 1], part % num_minibatches == 0 or part == count) for part in range(1, count + 1)
    ]


class AsyncWindowSource(BatchSource):
    """Groups start as soon as the window allows, with the newest weights; training takes the oldest finished ones.

    ``num_minibatches``: a step trains on so many minibatches (per substep), each as soon as enough groups are done; None:
    on the whole batch at once. ``in_order``: it waits for the oldest ones instead, so that a seeded run can be repeated.
    """

    def __init__(
        self,
        dataset: RLDataset,
        sample_group: SampleGroup,
        num_substeps: int,
        groups_per_batch: int,
        max_steps_off_policy: int,
        start: int,
        end: int,
        in_order: bool = False,
        num_minibatches: int | None = None,
    ) -> None:
        super().__init__(dataset, sample_group, num_substeps)
        self._in_order = in_order
        self._num_minibatches = num_minibatches
        self._groups_per_batch = groups_per_batch
        self._window = groups_per_batch * (max_steps_off_policy + 1)
        self._started: deque[asyncio.Task[WrappedTrajectoryGroup | None]] = deque()
        self._pending = self._builders(start, end)

    def _builders(self, start: int, end: int) -> deque[tuple[int, int, EnvGroupBuilder]]:
        rows: deque[tuple[int, int, EnvGroupBuilder]] = deque()
        for batch in range(start, end):
            rows.extend((batch, index, builder) for index, builder in enumerate(self._dataset.get_batch(batch)))
        return rows

    def set_sampler(self, sampler: tinker.SamplingClient, step: int) -> None:
        super().set_sampler(sampler, step)
        self._fill()

    def _fill(self) -> None:
        while self._pending and len(self._started) < self._window:
            batch, index, builder = self._pending.popleft()
            self._started.append(asyncio.create_task(self._sample(builder, batch, index)))

    async def minibatches(self, step: int) -> AsyncIterator[Minibatch]:
        self._fill()
        count = min(self._groups_per_batch, len(self._started))
        if self._num_minibatches is None:
            parts = [(count, self._num_substeps)]
        else:
            sizes = minibatch_sizes(count, self._num_substeps, self._num_minibatches)
            parts = [(size, int(ends_substep)) for size, ends_substep in sizes]
        groups: list[WrappedTrajectoryGroup | None] = []
        untrained = False
        for size, optim_steps in parts:
            chosen = await self._oldest_finished(size)
            sampled = [task.result() for task in chosen]
            groups += sampled
            kept = [group for group in sampled if group is not None]
            if kept or (untrained and optim_steps):
                untrained = not optim_steps
                yield Minibatch(kept, optim_steps)
            # Trained (or not usable): the next step may start others in their place.
            for task in chosen:
                self._started.remove(task)
        _usable(groups, step)

    async def _oldest_finished(self, count: int) -> list[asyncio.Task[WrappedTrajectoryGroup | None]]:
        """Wait for so many groups, the oldest ones or whichever they are; a failed one ends the run at once."""
        if self._in_order:
            oldest = list(self._started)[:count]
            await asyncio.gather(*oldest)
            return oldest
        while True:
            finished = [task for task in self._started if task.done()]
            for task in finished:
                task.result()
            if len(finished) >= count:
                return finished[:count]
            waiting = [task for task in self._started if not task.done()]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        await _cancel(list(self._started))
        self._started.clear()


def _usable(groups: Sequence[WrappedTrajectoryGroup | None], step: int) -> list[WrappedTrajectoryGroup]:
    kept = [group for group in groups if group is not None]
    if not groups:
        raise AllTrajectoriesFailedError(f"step {step}: the dataset gave no groups")
    if not kept:
        logger.warning("step %d: none of %d groups can be trained on", step, len(groups))
    return kept


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather_with_progress(coroutines: Sequence[Coroutine[Any, Any, T]], desc: str) -> list[T]:
    """``asyncio.gather`` with a progress bar on a terminal; the first error cancels the rest."""
    from rich.console import Console
    from rich.progress import Progress

    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    console = Console(stderr=True)
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task(desc, total=len(tasks))
            for task in tasks:
                task.add_done_callback(lambda _: progress.advance(bar))
            return list(await asyncio.gather(*tasks))
    finally:
        await _cancel([task for task in tasks if not task.done()])
