"""A replica of two devices, each a process of its own: the same numbers, and nothing is left of it when it is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinker_backend.runtime.roles import LoraSpec, RunSpec

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]
CLOSE = 1e-4


@pytest.fixture(scope="module")
def driver(open_vllm_engine: Callable[..., AbstractContextManager[Any]]) -> Iterator[Any]:
    """A torch trainer and a vLLM replica whose weights are divided."""
    with open_vllm_engine(devices=2, kv_heads=2) as driver:
        yield driver


def test_divided_weights_give_the_logprobs_of_the_trainer(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base, an adapter, and all weights: from a folder and over a channel to both workers."""
    driver("load_sampler", version="base", base_model="tiny", path=None)
    driver("create", run=RunSpec("untrained", "tiny", LoraSpec(rank=8, seed=1)))
    driver.train("adapter", 8)
    driver("publish", run_id="adapter", version="v1")
    driver.train("full", 0, rate=1e-3)
    driver("publish", run_id="full", version="f1")
    monkeypatch.setattr(driver.engine.sampler, "_broadcast", True)
    before = driver.sample("f1").sequences[0]
    np.testing.assert_allclose(
        before.logprobs, driver.logprobs("full", driver.prompt, before.tokens), atol=CLOSE, err_msg="f1"
    )
    driver.step("full", 1, rate=1e-3)
    driver("publish", run_id="full", version="f2")
    for version, run in (("v1", "adapter"), ("base", "untrained"), ("f2", "full")):
        sequence = driver.sample(version).sequences[0]
        expected = driver.logprobs(run, driver.prompt, sequence.tokens)
        np.testing.assert_allclose(sequence.logprobs, expected, atol=CLOSE, err_msg=version)
    np.testing.assert_allclose(driver.sample("f1").sequences[0].logprobs, before.logprobs, atol=CLOSE)


def test_a_killed_replica_of_two_devices_leaves_no_process_folder_or_memory(driver: Any) -> None:
    import psutil

    expected = driver.sample("v1", temperature=0.0).sequences[0]
    victim = driver.engine.sampler.sampler.pids()[0]
    children = psutil.Process(victim).children(recursive=True)
    (folder,) = [path for path in Path("/tmp").glob("tinker-vllm-*") if holds_lock(victim, path)]
    noted = {line.split(" ", 2)[2] for line in (folder / "shared-memory").read_text().splitlines()}
    assert len(children) >= 2 and len(noted) >= 2 and noted <= set(os.listdir("/dev/shm"))
    os.kill(victim, signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive, "the processes of a killed replica live on"
    again = driver.sample("v1", temperature=0.0).sequences[0]
    assert again.tokens.tolist() == expected.tokens.tolist()
    assert not folder.exists() and not noted & set(os.listdir("/dev/shm"))


def holds_lock(pid: int, folder: Path) -> bool:
    """Whether a process has the lock of an engine's folder open."""
    handles = Path(f"/proc/{pid}/fd")
    return any(os.readlink(handles / name) == str(folder / ".lock") for name in os.listdir(handles))
