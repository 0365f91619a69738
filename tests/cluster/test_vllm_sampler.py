"""A vLLM replica beside the torch trainer: logprobs equal the trainer's, versions stay apart, a dead replica is replaced."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinker_backend.runtime.roles import LoraSpec, RunSpec, RuntimeFault

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]
CLOSE = 1e-4
PROMPT = np.array([5, 17, 300, 42, 8, 77, 123, 9], dtype=np.int32)


@pytest.fixture(scope="module")
def driver(open_vllm_engine: Callable[..., AbstractContextManager[Any]]) -> Iterator[Any]:
    """A torch trainer and a vLLM replica over a tiny model."""
    with open_vllm_engine(devices=1) as driver:
        yield driver


def test_samples_have_the_logprobs_of_the_trainer(driver: Any) -> None:
    driver("load_sampler", version="base", base_model="tiny", path=None)
    driver.train("adapter", 8)
    driver("publish", run_id="adapter", version="v1")
    driver("create", run=RunSpec("untrained", "tiny", LoraSpec(rank=8, seed=1)))
    for version, run in (("v1", "adapter"), ("base", "untrained")):
        result = driver.sample(version, num_samples=3, topk_sample_logprobs=4)
        assert len(result.sequences) == 3 and len({tuple(s.tokens) for s in result.sequences}) > 1
        for sequence in result.sequences:
            expected = driver.logprobs(run, PROMPT, sequence.tokens)
            np.testing.assert_allclose(sequence.logprobs, expected, atol=CLOSE)
            assert sequence.topk is not None and sequence.topk.token_ids.shape == (len(sequence.tokens), 4)
    # A fixed seed gives the same tokens; a temperature shows in the logprobs.
    first, again = (driver.sample("v1", seed=11).sequences[0].tokens.tolist() for _ in range(2))
    assert first == again
    cold = driver.sample("v1", temperature=0.25).sequences[0]
    assert cold.logprobs.mean() > driver.logprobs("adapter", PROMPT, cold.tokens).mean() + 0.1
    # vLLM takes no temperature above 2 by itself.
    warm, hot = (driver.sample("v1", temperature=t, topk_sample_logprobs=20).sequences[0] for t in (2.0, 4.0))
    spreads = [float(np.ptp(sequence.topk.logprobs[0])) for sequence in (warm, hot) if sequence.topk is not None]
    assert spreads[0] == pytest.approx(2 * spreads[1], rel=1e-3)


def test_prompt_scores_of_tuned_models_come_from_the_trainer(driver: Any) -> None:
    targets = np.tile(np.array([3, 9], dtype=np.int64), (len(PROMPT) - 1, 1))
    for version, run in (("v1", "adapter"), ("base", "untrained")):
        result = driver.sample(version, prompt_logprobs=True, topk_prompt_logprobs=3, max_tokens=2)
        assert result.prompt_logprobs is not None and np.isnan(result.prompt_logprobs[0])
        expected = driver.logprobs(run, PROMPT[:1], PROMPT[1:])
        np.testing.assert_allclose(result.prompt_logprobs[1:], expected, atol=CLOSE)
        assert result.topk_prompt_logprobs is not None and len(result.sequences[0].tokens) == 2
        chosen = driver.sample(version, target_prompt_logprobs=targets, max_tokens=0)
        assert chosen.sequences[0].tokens.size == 0
        wanted = driver.logprobs(run, PROMPT[:3], np.array([9]))
        assert np.asarray(chosen.target_prompt_logprobs)[2, 1] == pytest.approx(float(wanted[0]), abs=CLOSE)


def test_base_and_adapters_asked_at_once_do_not_mix(driver: Any) -> None:
    alone = {name: driver.sample(name, temperature=0.0).sequences[0] for name in ("base", "v1")}
    waits = [(name, driver.begin_sample(name, temperature=0.0)) for _ in range(8) for name in ("base", "v1")]
    for name, wait in waits:
        sequence = wait().sequences[0]
        assert sequence.tokens.tolist() == alone[name].tokens.tolist()
        np.testing.assert_allclose(sequence.logprobs, alone[name].logprobs, atol=CLOSE)


def test_the_base_stays_itself_when_every_slot_has_an_adapter(driver: Any) -> None:
    driver("drop_sampler", version="v1")
    for number in range(6):
        driver("publish", run_id="adapter", version=f"slot{number}")
        driver.sample(f"slot{number}", max_tokens=1)
    base = driver.sample("base", prompt_logprobs=True)
    sequence = base.sequences[0]
    np.testing.assert_allclose(sequence.logprobs, driver.logprobs("untrained", PROMPT, sequence.tokens), atol=CLOSE)
    assert base.prompt_logprobs is not None
    np.testing.assert_allclose(
        base.prompt_logprobs[1:], driver.logprobs("untrained", PROMPT[:1], PROMPT[1:]), atol=CLOSE
    )
    for number in range(6):
        driver("drop_sampler", version=f"slot{number}")
    driver("publish", run_id="adapter", version="v1")


def test_versions_are_frozen_and_full_weights_take_turns(driver: Any) -> None:
    before = driver.sample("v1", temperature=0.0).sequences[0]
    driver.step("adapter", 2)
    driver("publish", run_id="adapter", version="v2")
    after = driver.sample("v2", temperature=0.0).sequences[0]
    np.testing.assert_allclose(after.logprobs, driver.logprobs("adapter", PROMPT, after.tokens), atol=CLOSE)
    still = driver.sample("v1", temperature=0.0).sequences[0]
    assert still.tokens.tolist() == before.tokens.tolist()
    np.testing.assert_allclose(still.logprobs, before.logprobs, atol=CLOSE)
    driver.train("full", 0, rate=1e-3)
    driver("publish", run_id="full", version="f1")
    full = driver.sample("f1").sequences[0]
    np.testing.assert_allclose(full.logprobs, driver.logprobs("full", PROMPT, full.tokens), atol=CLOSE)
    base = driver.sample("base").sequences[0]
    np.testing.assert_allclose(base.logprobs, driver.logprobs("untrained", PROMPT, base.tokens), atol=CLOSE)
    once_more = driver.sample("v2", temperature=0.0).sequences[0]
    np.testing.assert_allclose(once_more.logprobs, after.logprobs, atol=CLOSE)
    folder = Path(driver.engine.exchange.folder)
    assert len(list(folder.glob("[0-9]*"))) == 3
    driver("drop_sampler", version="v2")
    assert len(list(folder.glob("[0-9]*"))) == 2
    with pytest.raises(RuntimeFault, match="not loaded"):
        driver.sample("v2")


def test_all_weights_go_over_a_channel_where_that_is_asked_for(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.engine.sampler, "_broadcast", True)
    driver.step("full", 1, rate=1e-3)
    driver("publish", run_id="full", version="f2")
    full = driver.sample("f2").sequences[0]
    np.testing.assert_allclose(full.logprobs, driver.logprobs("full", PROMPT, full.tokens), atol=CLOSE)
    base = driver.sample("base").sequences[0]
    np.testing.assert_allclose(base.logprobs, driver.logprobs("untrained", PROMPT, base.tokens), atol=CLOSE)
    # It comes back from the folder that was written behind the channel.
    again = driver.sample("f2").sequences[0]
    assert again.tokens.tolist() == full.tokens.tolist()
    np.testing.assert_allclose(again.logprobs, full.logprobs, atol=CLOSE)


def test_rollouts_alone_serve_base_and_saved_adapters(driver: Any, tmp_path: Path) -> None:
    from tinker_backend.runtime.ray.cluster_engine import ClusterEngine
    from tinker_backend.runtime.ray.samplers import RemoteSampler
    from tinker_backend.runtime.ray.turns import Turns
    from tinker_backend.runtime.ray.weight_sync import ExchangeFolder

    driver("save", run_id="adapter", path=str(tmp_path / "saved"), kind="sampler")
    sampler = RemoteSampler(driver.engine.sampler.sampler, {"tiny"}, has_trainer=False)
    turns = Turns(False, lambda: None, lambda: None, 10)
    engine = ClusterEngine(None, sampler, ExchangeFolder(tmp_path / "exchange"), turns, lambda: None)
    threading.Thread(target=engine.run, daemon=True).start()
    alone = type(driver)(engine)
    alone("load_sampler", version="alone", base_model="tiny", path=None)
    alone("load_sampler", version="saved", base_model="tiny", path=str(tmp_path / "saved"))
    for version, run in (("alone", "untrained"), ("saved", "adapter")):
        sequence = alone.sample(version).sequences[0]
        np.testing.assert_allclose(sequence.logprobs, driver.logprobs(run, PROMPT, sequence.tokens), atol=CLOSE)
    scored = alone.sample("alone", prompt_logprobs=True).prompt_logprobs
    assert scored is not None
    np.testing.assert_allclose(scored[1:], driver.logprobs("untrained", PROMPT[:1], PROMPT[1:]), atol=CLOSE)
    with pytest.raises(RuntimeFault, match="need a trainer"):
        alone.sample("saved", prompt_logprobs=True)
    with pytest.raises(RuntimeFault, match="rollouts alone"):
        alone("create", run=RunSpec("none", "tiny", LoraSpec(rank=8)))
    engine.stop()


def test_wrong_requests_are_refused_and_stops_are_kept(driver: Any) -> None:
    with pytest.raises(RuntimeFault, match="outside the vocabulary"):
        driver.sample("base", np.array([1, 100000], dtype=np.int32))
    with pytest.raises(RuntimeFault, match="not served"):
        driver("load_sampler", version="x", base_model="other", path=None)
    free = driver.sample("base", temperature=0.0, max_tokens=8).sequences[0]
    stopped = driver.sample("base", temperature=0.0, max_tokens=8, stop_token_ids=[int(free.tokens[3])]).sequences[0]
    cut = free.tokens.tolist().index(int(free.tokens[3])) + 1
    assert stopped.tokens.tolist() == free.tokens.tolist()[:cut] and stopped.stop_reason == "stop"


def test_a_killed_replica_is_replaced_and_its_requests_are_answered(driver: Any, tmp_path: Path) -> None:
    """Also when a saved folder that one of its samplers was read from is no longer there."""
    import psutil

    for name in ("kept", "deleted"):
        driver("save", run_id="adapter", path=str(tmp_path / name), kind="sampler")
        driver("load_sampler", version=name, base_model="tiny", path=str(tmp_path / name))
    shutil.rmtree(tmp_path / "deleted")
    still = driver.sample("deleted", temperature=0.0).sequences[0]
    sampler = driver.engine.sampler.sampler
    prompts = [np.roll(PROMPT, shift) for shift in range(8)]
    expected = [driver.sample("v1", tokens, temperature=0.0, max_tokens=20).sequences[0] for tokens in prompts]
    victim = sampler.pids()[0]
    children = psutil.Process(victim).children(recursive=True)
    assert children
    waits = [driver.begin_sample("v1", tokens, temperature=0.0, max_tokens=20) for tokens in prompts]
    os.kill(victim, signal.SIGKILL)
    for wait, sequence in zip(waits, expected, strict=True):
        assert wait().sequences[0].tokens.tolist() == sequence.tokens.tolist()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive, "the processes of a killed replica live on"
    assert driver.sample("kept", temperature=0.0).sequences[0].tokens.tolist() == still.tokens.tolist()
    with pytest.raises(RuntimeFault, match="deleted"):
        driver.sample("deleted")
    assert len(driver.sample("kept").sequences[0].tokens) == 6
