"""Replicas that share GPUs with a trainer: none starts while the trainer computes, and one that dies asleep harms nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.ray


class Actor:
    """Notes calls; each returns what ``wait_for`` runs."""

    def __init__(self, number: int, events: list[str]) -> None:
        self.number, self.events = number, events
        self.dead = False
        self.opens = threading.Event()
        self.opens.set()

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *_: lambda: self._call(name))

    def _call(self, name: str) -> None:
        from tinker_backend.runtime.ray.ray_cluster import ActorLost

        if self.dead:
            raise ActorLost("it died")
        if name == "open":
            assert self.opens.wait(10)
        self.events.append(f"{name} {self.number}")


class Replicas:
    """A sampler over two stand-ins, and the actors in the order of their start."""

    def __init__(self, sampler: Any, actors: list[Actor], events: list[str]) -> None:
        self.sampler, self.actors, self.events = sampler, actors, events

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, self.events
            time.sleep(0.01)


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicas]:
    """Two replicas that are up and awake."""
    from tinker_backend.runtime.ray import vllm_sampler

    events: list[str] = []
    actors: list[Actor] = []

    def start(sampler: Any, number: int) -> Actor:
        actors.append(Actor(len(actors), events))
        return actors[-1]

    monkeypatch.setattr(vllm_sampler.VllmSampler, "_start", start)
    monkeypatch.setattr(vllm_sampler, "wait_for", lambda calls, seconds: [call() for call in calls])
    monkeypatch.setattr(vllm_sampler, "kill", lambda actors: None)
    config = SimpleNamespace(start_timeout_seconds=10.0, call_timeout_seconds=10.0)
    cluster: Any = SimpleNamespace(config=config, placement=SimpleNamespace(infer=(0, 1)))
    nothing: Any = None
    sampler = vllm_sampler.VllmSampler(cluster, nothing, nothing)
    sampler.open()
    events.clear()
    yield Replicas(sampler, actors, events)
    sampler.close()


def test_all_replicas_sleep_and_wake(replicas: Replicas) -> None:
    replicas.sampler.sleep()
    replicas.sampler.wake()
    assert replicas.events == ["sleep 0", "sleep 1", "wake 0", "wake 1"]


def test_a_replica_that_dies_asleep_is_replaced_after_the_others_have_woken(replicas: Replicas) -> None:
    replicas.sampler.sleep()
    replicas.actors[0].dead = True
    replicas.sampler.wake()
    replicas.wait(lambda: "open 2" in replicas.events)
    assert replicas.events == ["sleep 0", "sleep 1", "wake 1", "open 2"]


def test_no_replica_starts_while_the_trainer_has_the_gpus(replicas: Replicas) -> None:
    replicas.actors[1].dead = True
    replicas.sampler.sleep()  # finds it dead
    time.sleep(0.2)
    assert replicas.events == ["sleep 0"] and len(replicas.actors) == 2
    replicas.sampler.wake()
    replicas.wait(lambda: "open 2" in replicas.events)


def test_a_replica_that_is_starting_is_waited_for_and_sleeps_too(replicas: Replicas) -> None:
    replicas.actors[0].dead = True
    gate = threading.Event()
    original = Actor.__init__

    def slow(actor: Actor, number: int, events: list[str]) -> None:
        original(actor, number, events)
        actor.opens = gate

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Actor, "__init__", slow)
        replicas.sampler._everywhere("ping")
        replicas.wait(lambda: len(replicas.actors) == 3)
    sleeper = threading.Thread(target=replicas.sampler.sleep)
    sleeper.start()
    time.sleep(0.2)
    assert "sleep 1" not in replicas.events
    gate.set()
    sleeper.join(10)
    replicas.wait(lambda: {"sleep 1", "sleep 2"} <= set(replicas.events))
    assert replicas.events.index("open 2") < replicas.events.index("sleep 2")
