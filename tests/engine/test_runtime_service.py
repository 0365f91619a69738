"""The runtime process over a real ZeroMQ socket: the whole flow, and how it starts and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from tinker_backend.runtime import messages
from tinker_backend.runtime.roles import (
    Datum,
    LoraSpec,
    LossRequest,
    LossResult,
    ModelCard,
    OptimParams,
    RunSpec,
    SampleRequest,
    SampleResult,
)

WAIT_MS = 180_000
"""A process takes two seconds of a core to load torch; on a machine that works on other things that can be a minute."""


class Process:
    """A runtime process and a DEALER socket to it."""

    def __init__(self, folder: Path, engine: str, *options: str) -> None:
        (folder / "engine.yaml").write_text(engine)
        self.endpoint = f"ipc://{folder}/runtime.sock"
        self.command = [sys.executable, "-m", "tinker_backend.runtime"]
        self.command += ["--engine", str(folder / "engine.yaml"), "--endpoint", self.endpoint, *options]
        self.env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.log = folder / "runtime.log"
        self.child: subprocess.Popen[bytes] | None = None
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(self.endpoint)
        self._calls = 0

    def start(self) -> None:
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(self.command, env=self.env, stderr=log)

    def send(self, method: str, **params: Any) -> int:
        self._calls += 1
        self.socket.send(messages.pack({"id": self._calls, "method": method, "params": params}))
        return self._calls

    def receive(self) -> dict[str, Any]:
        assert self.socket.poll(WAIT_MS), f"no answer; log: {self.log.read_text()}"
        answer: dict[str, Any] = messages.unpack(self.socket.recv())
        return answer

    def call(self, method: str, **params: Any) -> Any:
        number = self.send(method, **params)
        answer = self.receive()
        assert answer["id"] == number
        assert "fault" not in answer, answer
        return answer["result"]

    def fault(self, method: str, **params: Any) -> dict[str, str]:
        self.send(method, **params)
        fault: dict[str, str] = self.receive()["fault"]
        return fault

    def close(self) -> None:
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait(10)
        self.socket.close()
        self._context.destroy(linger=0)


@pytest.fixture
def new_process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(engine: str, *options: str) -> Process:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Process(folder, engine, *options))
        return made[-1]

    yield make
    for process in made:
        process.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, engine_yaml: str) -> Iterator[Process]:
    """One runtime for the tests that end none; each has names of its own."""
    process = Process(tmp_path_factory.mktemp("shared"), engine_yaml)
    process.start()
    yield process
    process.close()


@pytest.fixture(scope="module")
def engine_yaml(tiny_folder: Callable[..., Path]) -> str:
    strategy = "actor_train: {strategy_args: {strategy_config: {dtype: float32}}}\n"
    return f"pretrain: {tiny_folder('qwen3')}\nmodel_name: tiny\naliases: [org/tiny]\n{strategy}"


def test_a_run_is_created_trained_published_sampled_saved_and_loaded(
    new_process: Callable[..., Process], engine_yaml: str, data: Any, tmp_path: Path
) -> None:
    runtime = new_process(engine_yaml)
    runtime.start()
    hello = runtime.call("hello")
    assert runtime.child is not None
    assert hello["pid"] == runtime.child.pid and hello["device"] == "cpu" and hello["dtype"] == "float32"
    (card,) = hello["models"]
    assert isinstance(card, ModelCard) and card.name == "tiny" and card.aliases == ["org/tiny"]
    assert card.eos_token_ids == [2] and card.max_context_length == 512 and card.vocab_size == 512
    runtime.call("create", run=RunSpec("run", "org/tiny", LoraSpec(rank=8, seed=1)))
    batch = [data.datum(20, weighted=False) for _ in range(4)]
    losses = []
    for _ in range(5):
        (got,) = runtime.call("forward_backward", batch=[LossRequest("run", 1, batch, "cross_entropy")])
        assert isinstance(got, LossResult)
        losses.append(got.metrics["loss:sum"])
        assert runtime.call("optim_step", run_id="run", params=OptimParams(learning_rate=1e-2))["grad_norm"] > 0
    assert losses[-1] < 0.9 * losses[0]
    runtime.call("publish", run_id="run", version="run-1")
    request = SampleRequest("q1", "run-1", batch[0].tokens, num_samples=2, max_tokens=6, seed=1, stop_token_ids=[])
    result = runtime.call("sample", request=request)
    assert isinstance(result, SampleResult) and [len(s.tokens) for s in result.sequences] == [6, 6]
    saved = runtime.call("save", run_id="run", path=str(tmp_path / "w"), kind="training")
    assert saved.size_bytes > 0 and (tmp_path / "w" / "adapter_model.safetensors").is_file()
    assert runtime.call("read_weights_info", path=str(tmp_path / "w"))["lora_rank"] == 8
    runtime.call("load", run=RunSpec("again", "tiny", LoraSpec(rank=8)), path=str(tmp_path / "w"), optimizer=True)
    runtime.call("load_sampler", version="saved", base_model="tiny", path=str(tmp_path / "w"))
    status = runtime.call("status")
    assert status["runs"] == ["again", "run"] and status["samplers"] == ["run-1", "saved"]
    assert status["memory_bytes"] > 1e7
    runtime.call("drop_sampler", version="saved")
    runtime.call("drop_run", run_id="again")
    assert runtime.call("status")["runs"] == ["run"]


def test_wrong_calls_are_answered_with_faults_and_noise_is_ignored(shared: Process, data: Any) -> None:
    runtime = shared
    assert runtime.fault("teleport") == {"message": "method 'teleport' is unknown", "category": "server"}
    for noise in (
        b"",
        b"\xc1",
        messages.pack([1, 2]),
        messages.pack({"id": 1}),
        messages.pack({"id": 1, "method": "ping", "params": 3}),
    ):
        runtime.socket.send(noise)
    assert runtime.call("ping") == {}
    runtime.call("create", run=RunSpec("faulty", "tiny", LoraSpec(rank=4)))
    bad = Datum(np.array([9999], dtype=np.int32), {"target_tokens": np.array([1])})
    good = data.batch(2)
    answers = runtime.call(
        "forward_backward",
        batch=[LossRequest("faulty", 1, [bad], "cross_entropy"), LossRequest("faulty", 2, good, "cross_entropy")],
    )
    assert "9999" in str(answers[0]) and answers[0].category == "user"
    assert isinstance(answers[1], LossResult)
    assert runtime.fault("optim_step", run_id="nobody", params=OptimParams())["category"] == "server"
    assert "publish failed" in runtime.fault("publish", run_id="faulty")["message"]
    assert runtime.call("ping") == {}


def test_many_samples_are_in_flight_and_one_can_be_cancelled(shared: Process, data: Any) -> None:
    runtime = shared
    runtime.call("load_sampler", version="base", base_model="tiny", path=None)
    long = runtime.send(
        "sample",
        request=SampleRequest("long", "base", data.tokens(5), num_samples=64, max_tokens=500, stop_token_ids=[]),
    )
    short = [
        runtime.send("sample", request=SampleRequest(f"q{i}", "base", data.tokens(5), max_tokens=2, stop_token_ids=[]))
        for i in range(10)
    ]
    cancelled = runtime.send("cancel", request_id="long")
    answers = {a["id"]: a for a in (runtime.receive() for _ in range(12))}
    assert "cancelled" in answers[long]["fault"]["message"]
    assert answers[cancelled]["result"] is None
    assert all(len(answers[i]["result"].sequences[0].tokens) == 2 for i in short)


def test_ping_is_answered_while_torch_computes(shared: Process, data: Any) -> None:
    runtime = shared
    runtime.call("create", run=RunSpec("busy", "tiny", LoraSpec(rank=4)))
    batch = [data.datum(400) for _ in range(40)]
    training = runtime.send("forward_backward", batch=[LossRequest("busy", 1, batch, "cross_entropy")])
    time.sleep(0.2)
    ping = runtime.send("ping")
    assert runtime.receive()["id"] == ping
    assert runtime.receive()["id"] == training


def test_the_socket_is_there_before_the_models_are(new_process: Callable[..., Process], engine_yaml: str) -> None:
    runtime = new_process(engine_yaml)
    hello, ping = runtime.send("hello"), runtime.send("ping")
    runtime.start()
    assert [runtime.receive()["id"] for _ in range(2)] == [ping, hello]


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("pretrain: /nowhere/at/all\n", "no such folder"),
        ("pretrain: {broken}\n", "MambaForCausalLM"),
        ("pretrain: {tiny}\nthreads: 0\n", "threads"),
        ("pretrain: {tiny}\nactor_train: {{strategy_args: {{strategy_config: {{dtype: int3}}}}}}\n", "int3"),
        (
            "pretrain: {tiny}\nactor_infer: {{strategy_args: {{strategy_config: {{kv_tokens: 3}}}}}}\n",
            "kv_tokens.*kv_cache_tokens",
        ),
    ],
)
def test_a_runtime_that_cannot_start_says_why_and_ends(
    engine: str, message: str, new_process: Callable[..., Process], tiny_folder: Callable[..., Path], tmp_path: Path
) -> None:
    import json
    import re
    import shutil

    broken = tmp_path / "broken"
    shutil.copytree(tiny_folder("llama"), broken)
    config = json.loads((broken / "config.json").read_text()) | {"architectures": ["MambaForCausalLM"]}
    (broken / "config.json").write_text(json.dumps(config))
    runtime = new_process(engine.format(tiny=tiny_folder("llama"), broken=broken))
    runtime.send("hello")
    runtime.start()
    fault = runtime.receive()["fault"]
    assert re.search(message, fault["message"])
    assert runtime.child is not None and runtime.child.wait(20) == 1
    assert re.search(message, runtime.log.read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_runtime_cleanly_even_while_it_computes(
    number: signal.Signals, new_process: Callable[..., Process], engine_yaml: str, data: Any
) -> None:
    runtime = new_process(engine_yaml)
    runtime.start()
    runtime.call("create", run=RunSpec("run", "tiny", LoraSpec(rank=4)))
    runtime.send(
        "forward_backward", batch=[LossRequest("run", 1, [data.datum(200) for _ in range(400)], "cross_entropy")]
    )
    time.sleep(0.3)
    assert runtime.child is not None
    runtime.child.send_signal(number)
    assert runtime.child.wait(15) == 0


PARENT = """
import subprocess, sys, time
child = subprocess.Popen(sys.argv[1:], stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(300)
"""


def test_the_runtime_ends_when_its_parent_is_killed(new_process: Callable[..., Process], engine_yaml: str) -> None:
    runtime = new_process(engine_yaml)
    script = "import os, sys; sys.argv += ['--parent', str(os.getpid())]\n" + PARENT
    parent = subprocess.Popen([sys.executable, "-c", script, *runtime.command], env=runtime.env, stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert runtime.call("hello")["pid"] == pid
        parent.kill()
        parent.wait(10)
        deadline = time.monotonic() + 10
        while Path(f"/proc/{pid}/cmdline").exists() and b"runtime" in Path(f"/proc/{pid}/cmdline").read_bytes():
            assert time.monotonic() < deadline, "the runtime outlives its parent"
            time.sleep(0.05)
    finally:
        if parent.poll() is None:
            parent.kill()
            parent.wait(10)
        if parent.stdout is not None:
            parent.stdout.close()
