"""Turns, gates and exchange folders: what keeps trainer, sampler and versions out of each other's way."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tinker_backend.runtime.ray.batch_gate import BatchGate
from tinker_backend.runtime.ray.own_folder import OwnFolder
from tinker_backend.runtime.ray.turns import Turns
from tinker_backend.runtime.ray.weight_sync import MARKER, ExchangeFolder, wait_stable
from tinker_backend.runtime.roles import RuntimeFault, SavedWeights


class Watched:
    """Counts what runs and notes the order of sleeps and wakes."""

    def __init__(self, shared: bool = True, seconds: float = 5) -> None:
        self.events: list[str] = []
        self.turns = Turns(shared, lambda: self.events.append("sleep"), lambda: self.events.append("wake"), seconds)


def test_the_sampler_sleeps_while_the_trainer_computes_and_wakes_once_for_many() -> None:
    watched = Watched()
    with watched.turns.sampling():
        assert watched.events == []
    for _ in range(2):
        with watched.turns.training():
            assert watched.events == ["sleep"]
    with watched.turns.sampling(), watched.turns.sampling():
        assert watched.events == ["sleep", "wake"]


def test_training_waits_for_samples_and_those_that_waited_go_before_the_next_training() -> None:
    watched = Watched()
    order: list[str] = []
    first = watched.turns.sampling().__enter__()

    def train(name: str) -> None:
        with watched.turns.training():
            order.append(name)
            time.sleep(0.1)

    threads = [threading.Thread(target=train, args=("train1",))]
    threads[0].start()
    time.sleep(0.1)
    late = watched.turns.sampling()
    late.when_ready(lambda fault: (order.append(f"sample {fault}"), late.leave()))
    time.sleep(0.1)
    assert order == []
    first.leave()
    time.sleep(0.05)
    threads.append(threading.Thread(target=train, args=("train2",)))
    threads[1].start()
    for thread in threads:
        thread.join(5)
    assert order == ["train1", "sample None", "train2"]
    assert watched.events == ["sleep", "wake", "sleep"]


def test_a_turn_that_never_comes_is_a_fault_and_not_a_hang() -> None:
    watched = Watched(seconds=0.2)
    with watched.turns.sampling(), pytest.raises(RuntimeFault, match="no turn"):
        with watched.turns.training():
            pass
    with watched.turns.training():
        faults: list[object] = []
        watched.turns.sampling().when_ready(faults.append)
        time.sleep(0.5)
        assert isinstance(faults[0], RuntimeFault)


def test_nothing_waits_where_nothing_is_shared() -> None:
    watched = Watched(shared=False)
    with watched.turns.training(), watched.turns.sampling():
        assert watched.events == []


async def test_a_gate_keeps_kinds_apart_and_starves_none() -> None:
    inside: list[str] = []
    switches: list[object] = []

    async def switch(kind: object) -> None:
        assert inside == []
        switches.append(kind)
        await asyncio.sleep(0)

    gate = BatchGate(switch)

    async def request(kind: str) -> None:
        async with gate.enter(kind):
            inside.append(kind)
            assert set(inside) == {kind}
            await asyncio.sleep(0.01)
            inside.remove(kind)

    async with asyncio.timeout(10):
        await asyncio.gather(*(request(kind) for kind in "aabbaab" * 5))
    assert switches[0] == "a" and len(switches) < 25


async def test_a_failed_switch_fails_its_request_and_the_gate_goes_on() -> None:
    async def switch(kind: object) -> None:
        if kind == "bad":
            raise OSError("no such weights")

    gate = BatchGate(switch)
    async with asyncio.timeout(5):
        with pytest.raises(OSError, match="weights"):
            async with gate.enter("bad"):
                pass
        async with gate.enter("good"):
            pass


def test_a_version_is_a_new_folder_with_a_marker_and_goes_when_dropped(tmp_path: Path) -> None:
    exchange = ExchangeFolder(tmp_path)

    def save(path: str, kind: object) -> SavedWeights:
        Path(path).mkdir()
        (Path(path) / "tinker.json").write_text("{}")
        return SavedWeights(path, 2, {"tinker.json": 2})

    first = exchange.publish("v", save, "sampler")
    wait_stable(first, 1)
    (first / MARKER).unlink()
    with pytest.raises(RuntimeFault, match="exchange_folder"):
        wait_stable(first, 0.1)
    exchange.drop("v")
    assert not first.exists()
    assert exchange.publish("v", save, "sampler") != first
    exchange.close()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_killed_processes_are_removed_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    living, dead = (OwnFolder(tmp_path, "stem") for _ in range(2))
    os.close(dead._lock)
    dead._lock = -1
    (tmp_path / "stem-others").mkdir()
    third = OwnFolder(tmp_path, "stem")
    assert {path.name for path in tmp_path.iterdir()} == {living.path.name, third.path.name, "stem-others"}
    third.remove()
    third.remove()
    assert not third.path.exists()


def test_all_weights_arrive_in_order_at_every_worker(tiny_models: Any) -> None:
    torch = pytest.importorskip("torch")
    from tinker_backend.runtime.architecture import read_architecture
    from tinker_backend.runtime.base_model import read_weights
    from tinker_backend.runtime.ray.weight_broadcast import Channel, manifest, pieces_of, receive, send

    folder = tiny_models("gpt2")  # its matrices are stored the other way round
    architecture = read_architecture(folder)
    fused = read_weights(folder, architecture, torch.float32, torch.device("cpu"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        channel = Channel("127.0.0.1", probe.getsockname()[1], 3, "cpu", 30)
    received: dict[int, dict[str, Any]] = {}

    def take(number: int) -> None:
        incoming = receive(manifest(architecture), torch.float32, channel, number)
        received[number] = {name: tensor.clone() for name, tensor in incoming}

    takers = [threading.Thread(target=take, args=(number,)) for number in (1, 2)]
    for taker in takers:
        taker.start()
    send((p for name, tensor in fused.items() for p in pieces_of(architecture, name, tensor, torch.float32)), channel)
    for taker in takers:
        taker.join(30)
    from safetensors.torch import load_file

    expected = load_file(folder / "model.safetensors")
    for number in (1, 2):
        assert expected.keys() <= received[number].keys()
        for name, tensor in expected.items():
            assert torch.equal(received[number][name], tensor), name
