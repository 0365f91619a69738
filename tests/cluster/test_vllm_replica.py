"""The order in which a replica asks things of its engine: sleep, wake, and weights that replace those of the base."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tinker_backend.runtime.ray import vllm_replica
from tinker_backend.runtime.ray.vllm_replica import ReplicaSettings, ServedVersion, VllmReplica
from tinker_backend.runtime.ray.weight_sync import MARKER


class Engine:
    """Notes every call of an AsyncLLM."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: str | None = None

    def __getattr__(self, name: str) -> Any:
        async def call(*positional: Any, **named: Any) -> None:
            shown = [str(value) for value in positional] + [f"{key}={value}" for key, value in named.items()]
            self.calls.append(f"{name}({', '.join(shown)})")
            if self.fails is not None and self.fails in self.calls[-1]:
                raise OSError("the disk is gone")

        return call


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A complete folder of weights, beside that of the base."""
    for name in ("weights", "base"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MARKER).touch()
    return tmp_path / "weights"


def replica_over(engine: Engine, weights: Path, monkeypatch: pytest.MonkeyPatch, level: int = 1) -> VllmReplica:
    monkeypatch.setattr(vllm_replica, "_lora_request", lambda version: version.name)
    base = str(weights.parent / "base")
    replica = VllmReplica(ReplicaSettings(base, (2,), {"enable_lora": True}, sleep_level=level))
    replica._engine, replica._mixed = engine, True
    return replica


async def enter(replica: VllmReplica, version: ServedVersion) -> None:
    async with replica._gate.enter(replica._kind(version, False)):
        pass


async def test_memory_is_given_back_and_taken_in_the_right_order(
    monkeypatch: pytest.MonkeyPatch, weights: Path
) -> None:
    engine = Engine()
    replica = replica_over(engine, weights, monkeypatch)
    await replica.sleep()
    await replica.wake()
    assert engine.calls == [
        "reset_prefix_cache()",
        "sleep(level=1)",
        "wake_up(tags=['weights'])",
        "wake_up(tags=['kv_cache'])",
        "reset_prefix_cache()",
    ]


async def test_dropped_weights_and_adapters_are_read_again_before_the_cache_comes_back(
    monkeypatch: pytest.MonkeyPatch, weights: Path
) -> None:
    engine = Engine()
    replica = replica_over(engine, weights, monkeypatch, level=2)
    await replica.load(ServedVersion("v1", 1, str(weights)))
    await replica.sleep()
    await replica.load(ServedVersion("v2", 2, str(weights)))  # while it sleeps nothing is read
    engine.calls.clear()
    await replica.wake()
    assert engine.calls == [
        "wake_up(tags=['weights'])",
        f"collective_rpc(read_weights, args=('{weights.parent / 'base'}',))",
        "wake_up(tags=['kv_cache'])",
        "remove_lora(1)",
        "add_lora(v1)",
        "reset_prefix_cache()",
    ]


async def test_all_weights_are_replaced_with_nothing_running_and_an_empty_cache(
    monkeypatch: pytest.MonkeyPatch, weights: Path
) -> None:
    engine = Engine()
    replica = replica_over(engine, weights, monkeypatch)
    full, base = ServedVersion("f", 1, str(weights), full=True), ServedVersion("b", 2)
    await enter(replica, base)
    assert engine.calls == []
    await enter(replica, full)
    await enter(replica, full)
    assert engine.calls == [
        "pause_generation(mode=wait, clear_cache=True)",
        f"collective_rpc(read_weights, args=('{weights}',))",
        "reset_prefix_cache()",
        "resume_generation()",
    ]
    engine.calls.clear()
    await enter(replica, base)
    assert engine.calls[1] == f"collective_rpc(read_weights, args=('{weights.parent / 'base'}',))"


async def test_an_engine_whose_weights_are_half_replaced_serves_nobody(
    monkeypatch: pytest.MonkeyPatch, weights: Path
) -> None:
    engine = Engine()
    replica = replica_over(engine, weights, monkeypatch)
    full, base = ServedVersion("f", 1, str(weights), full=True), ServedVersion("b", 2)
    await enter(replica, base)
    engine.fails = "read_weights"
    with pytest.raises(OSError, match="disk"):
        await enter(replica, full)
    # The weights may be half of each now, so the base is read again before it is used.
    engine.fails = None
    engine.calls.clear()
    async with asyncio.timeout(5):
        await enter(replica, base)
    assert any("read_weights" in call for call in engine.calls)
