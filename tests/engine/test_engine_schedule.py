"""The engine's one queue: order within a run, shared passes, turns between training and sampling."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tinker_backend.runtime import arrivals
from tinker_backend.runtime import engine as engine_module
from tinker_backend.runtime.arrivals import Burst
from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.calls import Call
from tinker_backend.runtime.engine import Engine
from tinker_backend.runtime.roles import LoraSpec, LossRequest, OptimParams, RunSpec, RuntimeFault, SampleRequest
from tinker_backend.runtime.torch_sampler import TorchSampler
from tinker_backend.runtime.torch_trainer import TorchTrainer

WAIT = 60


class Client:
    """Submits calls to an engine and waits for the answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.log: list[str] = []

    def submit(self, method: str, label: str = "", **params: Any) -> Callable[[], Any]:
        done = threading.Event()
        answers: list[Any] = []

        def reply(answer: Any) -> None:
            answers.append(answer)
            self.log.append(label or method)
            done.set()

        self.engine.submit(Call(method, params, reply))

        def wait() -> Any:
            assert done.wait(WAIT), f"{method} was not answered within {WAIT} s"
            return answers[0]

        return wait

    def call(self, method: str, **params: Any) -> Any:
        return self.submit(method, **params)()


@pytest.fixture
def engine(base: BaseModel) -> Engine:
    models = {"tiny": base}
    return Engine(models, TorchTrainer(models, 64, False), TorchSampler(models, 4096, 8, 64))


@pytest.fixture
def start(engine: Engine) -> Iterator[Callable[[], None]]:
    thread = threading.Thread(target=engine.run)
    yield thread.start
    engine.stop()
    if thread.is_alive():
        thread.join(timeout=WAIT)
    assert not thread.is_alive()


def test_calls_of_a_run_are_done_in_order_and_waiting_passes_are_shared(
    engine: Engine, start: Callable[[], None], data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    steps = engine.trainer.forward_backward_steps

    def counted(batch: list[LossRequest]) -> Any:
        sizes.append(len(batch))
        return steps(batch)

    monkeypatch.setattr(engine.trainer, "forward_backward_steps", counted)
    client = Client(engine)
    for run_id in ("x1", "x2", "x3"):
        client.submit("create", run=RunSpec(run_id, "tiny", LoraSpec(rank=2)))
    waits = []
    for run_id in ("x1", "x2", "x3"):
        for step in range(2):
            batch = [LossRequest(run_id, step, data.batch(2, 8), "cross_entropy")]
            waits.append(client.submit("forward_backward", f"{run_id} fb {step}", batch=batch))
            waits.append(client.submit("optim_step", f"{run_id} step {step}", run_id=run_id, params=OptimParams()))
    start()
    answers = [wait() for wait in waits]
    assert [a["step"] for a in answers if isinstance(a, dict)] == [1, 2] * 3
    for run_id in ("x1", "x2", "x3"):
        mine = [entry for entry in client.log if entry.startswith(run_id)]
        assert mine == [f"{run_id} fb 0", f"{run_id} step 0", f"{run_id} fb 1", f"{run_id} step 1"]
    assert sizes[0] == 3


def test_sampling_goes_on_while_a_long_pass_is_trained(engine: Engine, start: Callable[[], None], data: Any) -> None:
    client = Client(engine)
    client.submit("create", run=RunSpec("run", "tiny", LoraSpec(rank=2)))
    client.submit("load_sampler", version="base", base_model="tiny", path=None)
    long_pass = [LossRequest("run", 1, [data.datum(60) for _ in range(300)], "cross_entropy")]
    trained = client.submit("forward_backward", batch=long_pass)
    waits = [
        client.submit(
            "sample", request=SampleRequest(f"q{i}", "base", data.tokens(10), max_tokens=5, stop_token_ids=[])
        )
        for i in range(6)
    ]
    start()
    assert all(len(wait().sequences[0].tokens) == 5 for wait in waits)
    assert "forward_backward" not in client.log
    trained()
    assert client.log[-1] == "forward_backward"


def test_training_goes_on_while_samples_keep_coming(engine: Engine, start: Callable[[], None], data: Any) -> None:
    client = Client(engine)
    client.submit("create", run=RunSpec("run", "tiny", LoraSpec(rank=2)))
    client.submit("load_sampler", version="base", base_model="tiny", path=None)
    endless = SampleRequest("long", "base", data.tokens(10), num_samples=64, max_tokens=240, stop_token_ids=[])
    sampling = client.submit("sample", request=endless)
    start()
    for _ in range(3):
        client.call("forward_backward", batch=[LossRequest("run", 1, data.batch(2), "cross_entropy")])
        client.call("optim_step", run_id="run", params=OptimParams())
    assert "sample" not in client.log
    client.call("cancel", request_id="long")
    assert isinstance(sampling(), RuntimeFault)


def test_freed_memory_goes_back_once_after_a_rest(
    engine: Engine, start: Callable[[], None], data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, rested = [], threading.Event()

    def give_back() -> Iterator[None]:
        given.append(1)
        rested.set()
        yield

    monkeypatch.setattr(engine_module, "give_back_freed_memory", give_back)
    monkeypatch.setattr(engine_module, "_IDLE_SECONDS", 0.05)
    client = Client(engine)
    start()
    for times in (1, 2):
        client.call("create", run=RunSpec(f"run{times}", "tiny", LoraSpec(rank=2)))
        client.call("forward_backward", batch=[LossRequest(f"run{times}", 1, data.batch(2), "cross_entropy")])
        assert rested.wait(WAIT)
        rested.clear()
        assert not rested.wait(0.2) and len(given) == times


def test_publish_follows_the_training_calls_before_it(engine: Engine, start: Callable[[], None], data: Any) -> None:
    client = Client(engine)
    client.submit("create", run=RunSpec("run", "tiny", LoraSpec(rank=2, seed=1)))
    client.submit("forward_backward", batch=[LossRequest("run", 1, data.batch(3), "cross_entropy")])
    client.submit("optim_step", run_id="run", params=OptimParams(learning_rate=0.1))
    client.submit("publish", run_id="run", version="v1")
    client.submit("forward_backward", batch=[LossRequest("run", 1, data.batch(3), "cross_entropy")])
    last = client.submit("optim_step", run_id="run", params=OptimParams(learning_rate=0.1))
    start()
    last()
    adapter = engine.sampler.versions["v1"].adapter
    assert adapter is not None
    values = engine.trainer.runs["run"].values
    assert not np.array_equal(adapter.flat.numpy(), values.numpy())
    assert np.abs(adapter.flat.numpy()).sum() > 0


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("optim_step", {"run_id": "nobody", "params": OptimParams()}, "'nobody' is not loaded"),
        ("publish", {"run_id": "nobody", "version": "v"}, "'nobody' is not loaded"),
        ("load_sampler", {"version": "v", "base_model": "huge", "path": None}, "'huge' is not served"),
        ("save", {"run_id": "nobody"}, "save failed: KeyError"),
        ("teleport", {}, "'teleport' is unknown"),
        ("sample", {"request": SampleRequest("q", "nobody", np.zeros(3, np.int32))}, "'nobody' is not loaded"),
    ],
)
def test_a_call_that_fails_is_answered_and_the_engine_goes_on(
    method: str, params: dict[str, Any], message: str, engine: Engine, start: Callable[[], None]
) -> None:
    client = Client(engine)
    start()
    answer = client.call(method, **params)
    assert isinstance(answer, RuntimeFault)
    with pytest.raises(RuntimeFault, match=message):
        raise answer
    assert client.call("status")["runs"] == []


def test_a_burst_of_samples_is_decoded_together(
    engine: Engine, start: Callable[[], None], data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    decode = engine.sampler._decode

    def noted(weight_set: Any) -> None:
        rows.append(weight_set.running)
        decode(weight_set)

    monkeypatch.setattr(engine.sampler, "_decode", noted)
    # Distances that a busy machine does not stretch beyond a burst.
    monkeypatch.setattr(arrivals, "_SHORTEST", 0.4)
    monkeypatch.setattr(arrivals, "_GAP", 0.4)
    monkeypatch.setattr(arrivals, "_LONGEST", 60.0)
    start()
    client = Client(engine)
    client.call("load_sampler", version="base", base_model="tiny", path=None)
    prompt = data.tokens(20)

    def request(i: int) -> SampleRequest:
        return SampleRequest(f"q{i}", "base", prompt, max_tokens=6, seed=i, stop_token_ids=[])

    waits = []
    for i in range(8):
        waits.append(client.submit("sample", request=request(i)))
        threading.Event().wait(0.002)
    assert [len(wait().sequences[0].tokens) for wait in waits] == [6] * 8
    # The first may have made steps before the second came; all else is in steps of eight rows.
    assert rows.count(8) >= 4 and len(rows) <= 2 * 5
    rows.clear()
    threading.Event().wait(0.6)
    assert len(client.submit("sample", request=request(9))().sequences[0].tokens) == 6
    assert rows == [1] * 5


def test_only_the_start_of_a_burst_is_waited_for() -> None:
    burst = Burst()
    burst.note(10.0)
    assert burst.patience(10.0, running=0) == 0  # a lonely request
    burst.note(10.002)
    assert 0.0 < burst.patience(10.003, running=1) <= 0.005
    assert burst.patience(10.003, running=5) == 0  # sequences that ran before it
    assert burst.patience(10.007, running=1) == 0  # nobody came for twice the distance of the first two
    burst.note(10.1)
    assert burst.patience(10.1, running=0) == 0  # another burst begins
    for i in range(200):
        burst.note(10.1 + 0.002 * i)
    assert burst.patience(10.5, running=1) == 0  # it has lasted long enough


def test_sampler_weights_are_written_aside_as_they_were_when_asked(
    engine: Engine, start: Callable[[], None], data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, write = threading.Event(), engine_module.save_run

    def slow(*args: Any) -> Any:
        assert gate.wait(WAIT)
        return write(*args)

    monkeypatch.setattr(engine_module, "save_run", slow)
    start()
    client = Client(engine)
    client.call("create", run=RunSpec("run", "tiny", LoraSpec(rank=2, seed=1)))
    before = engine.trainer.runs["run"].values.clone()
    saved = client.submit("save", run_id="run", path=str(tmp_path / "w"), kind="sampler")
    # While the disk is slow the run goes on, and its samples too.
    for step in range(2):
        client.call("forward_backward", batch=[LossRequest("run", step, data.batch(2, 8), "cross_entropy")])
        client.call("optim_step", run_id="run", params=OptimParams(learning_rate=0.1))
    client.call("publish", run_id="run", version="v1")
    client.call("sample", request=SampleRequest("q", "v1", data.tokens(5), max_tokens=2, seed=1))
    gate.set()
    assert saved().size_bytes > 0
    assert (engine.trainer.runs["run"].values != before).any()
    client.call("load", run=RunSpec("again", "tiny", LoraSpec(rank=2)), path=str(tmp_path / "w"), optimizer=False)
    assert torch.equal(engine.trainer.runs["again"].values, before)
    missing = client.call("save", run_id="nobody", path=str(tmp_path / "x"), kind="sampler")
    assert isinstance(missing, RuntimeFault) and "nobody" in str(missing)


def test_training_and_sampling_share_the_time_evenly_whatever_their_steps_take(
    engine: Engine, start: Callable[[], None], data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of its own: a micro-batch takes a second, a decode step a quarter of one."""
    now, order = [0.0], []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    train, step = engine._train, engine.sampler.step

    def trained() -> None:
        train()
        now[0] += 1.0
        order.append("T")

    def stepped() -> None:
        step()
        now[0] += 0.25
        order.append("S")

    monkeypatch.setattr(engine_module, "time", Clock)
    monkeypatch.setattr(engine, "_train", trained)
    monkeypatch.setattr(engine.sampler, "step", stepped)
    client = Client(engine)
    for run_id in ("x1", "x2"):
        client.submit("create", run=RunSpec(run_id, "tiny", LoraSpec(rank=2)))
    client.submit("load_sampler", version="base", base_model="tiny", path=None)
    prompt = data.tokens(200)  # longer than one read
    sample = SampleRequest("q", "base", prompt, num_samples=4, max_tokens=50, seed=1, stop_token_ids=[])
    waits = [client.submit("sample", request=sample)]
    for number in range(12):
        run_id = f"x{1 + number % 2}"
        batch = [LossRequest(run_id, number, [data.datum(60) for _ in range(2)], "cross_entropy")]
        waits.append(client.submit("forward_backward", batch=batch))
        waits.append(client.submit("optim_step", run_id=run_id, params=OptimParams()))
    start()
    for wait in waits:
        assert not isinstance(wait(), RuntimeFault)
    both = "".join(order)[: min(len(order) - order[::-1].index(side) for side in "TS")]
    turns = both.strip("T").strip("S")
    assert turns.count("T") >= 8 and turns.count("S") >= 30
    assert "TTT" not in turns and "S" * 10 not in turns
    shares = turns.count("T") * 1.0, turns.count("S") * 0.25
    assert abs(shares[0] - shares[1]) <= 2.0
