"""Runs that train side by side share passes: the first to arrive waits a moment for those that shared the last one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tinker_backend.dispatch import companions as companions_module
from tinker_backend.dispatch.batcher import Batcher
from tinker_backend.dispatch.companions import Companions
from tinker_backend.dispatch.promises import Promise
from tinker_backend.dispatch.run import Operation


class Link:
    """A runtime that takes a fixed time for every call and notes which runs shared it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.passes: list[list[str]] = []

    async def call(self, method: str, timeout: float, *, batch: list[str]) -> list[str]:
        self.passes.append(sorted(batch))
        await asyncio.sleep(self.seconds)
        return batch


async def _submit(batcher: Batcher, link: Any, run: str, delay: float) -> None:
    await asyncio.sleep(delay)
    operation = Operation(1, "forward_backward", {"request": run}, Promise("r", "o", "forward_backward", run, 1))
    (result,) = await batcher.forward_backward("m", [operation], link)
    assert result == run


async def _round(batcher: Batcher, link: Any, delays: dict[str, float]) -> None:
    await asyncio.gather(*(_submit(batcher, link, run, delay) for run, delay in delays.items()))


async def test_runs_that_shared_a_pass_share_the_next_one_though_they_arrive_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batcher, link = Batcher(60), Link(0.3)
    delays = {"a": 0.0, "b": 0.04, "c": 0.08}
    await _round(batcher, link, delays)
    assert link.passes == [["a"], ["b", "c"]]  # nothing is known of them yet
    # A wait that a busy machine does not outlast; it ends when the last of them is there.
    monkeypatch.setattr(companions_module, "_LONGEST", 30.0)
    monkeypatch.setattr(companions_module, "_SHARE", 100.0)
    start = asyncio.get_running_loop().time()
    await _round(batcher, link, delays)
    assert link.passes[2:] == [["a", "b", "c"]]
    assert asyncio.get_running_loop().time() - start < 15


async def test_a_run_whose_companions_are_gone_soon_waits_no_more() -> None:
    batcher, link = Batcher(60), Link(0.05)
    await _round(batcher, link, {"a": 0.0, "b": 0.0})
    for _ in range(10):
        await _round(batcher, link, {"a": 0.0})
    assert link.passes == [["a", "b"], *[["a"]] * 10]


def test_waits_in_vain_become_rare_and_success_brings_them_back() -> None:
    companions = Companions()
    companions.passed(["a", "b"], 0.2)
    assert companions.patience(["a", "b"]) == 0
    waits = 0
    for _ in range(100):
        if companions.patience(["a"]) > 0:
            companions.waited(joined=False)
            waits += 1
    assert 4 <= waits <= 7
    while not companions.patience(["a"]):
        pass
    companions.waited(joined=True)
    assert 0 < companions.patience(["a"]) <= 0.05
