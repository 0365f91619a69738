"""Servers whose engine is a cluster: SDKs walk, the conformance suite probes, and runs come through kills with their numbers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
PEERS = Path(__file__).parents[1] / "peers"
FORMS = [
    pytest.param(("fsdp2_train", "torch"), id="fsdp2_train-torch"),
    pytest.param(("torch", "vllm"), id="torch-vllm", marks=pytest.mark.vllm),
]


@pytest.fixture(scope="module", params=FORMS)
def server(
    request: pytest.FixtureRequest, start_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """One server for each form of the engine."""
    server = start_server(tmp_path_factory.mktemp("cluster") / "server", *request.param)
    server.form = request.param
    yield server
    import psutil

    started: list[psutil.Process] = []
    folders: set[Path] = set()
    end = time.monotonic() + 90  # a test may have left the server with a runtime that is starting again
    while not folders and time.monotonic() < end:
        time.sleep(0.2)
        started = psutil.Process(server.process.pid).children(recursive=True)
        with contextlib.suppress(psutil.NoSuchProcess):
            arguments = [argument for process in started for argument in process.cmdline()]
            folders = {Path(a.partition("=")[2]) for a in arguments if a.startswith("--temp_dir=")}
    server.stop()
    assert folders and all(folder.name.startswith("tinker-ray-") for folder in folders)
    _, alive = psutil.wait_procs(started, timeout=15)
    assert not alive, f"a server that was told to stop left {alive}"
    assert not any(folder.exists() for folder in folders)


def walk(python: str, script: str, server: Any, folder: Path) -> Any:
    """Runs a walk with an SDK's interpreter; the JSON line that it ends with."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TINKER_", "PYTHONPATH"))}
    done = subprocess.run(
        [python, "-W", "ignore", str(PEERS / script), server.url, "tiny"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        env={**environment, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:] + server.log()
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_our_sdk_walks_the_basic_flow(server: Any, tmp_path: Path) -> None:
    losses = walk(sys.executable, "walk_basic.py", server, tmp_path)["losses"]
    assert losses[2] < losses[0]


def test_the_official_sdk_walks_the_basic_flow_and_every_method(server: Any, tmp_path: Path) -> None:
    python = os.environ.get("TINKER_PEER_PYTHON")
    if not python:
        pytest.skip("TINKER_PEER_PYTHON is not set: no official SDK here")
    (tmp_path / "tiny").symlink_to(server.model)  # a sampling client looks its tokenizer up by the model's name
    basic = walk(python, "walk_basic.py", server, tmp_path)
    assert basic["losses"][2] < basic["losses"][0] and basic["version"] == "0.38.0"
    outcomes = walk(python, "walk_full.py", server, tmp_path)["outcomes"]
    unusual = {name for name, text in outcomes.items() if text != "ok" and "not tried" not in text}
    assert unusual == {
        "TrainingClient.optim_step (dimuon)",
        "TrainingClient.forward_backward (stable_reinforce)",
        "RestClient.whoami",  # the server has no keys here
    }
    assert {"TrainingClient.forward_backward", "SamplingClient.sample", "SamplingClient.compute_logprobs"} <= set(
        outcomes
    )


def hold_the_claims(server: Any) -> None:
    """Every probe of the conformance suite passes, but for those of a server with keys."""
    from tinker_backend.conformance import Suite, Verdict, select

    suite = Suite(server.url, deadline=120)
    try:
        outcomes = [probe.run(suite) for probe in select(None)]
    finally:
        suite.close()
    by = {verdict: [outcome for outcome in outcomes if outcome.verdict is verdict] for verdict in Verdict}
    assert not by[Verdict.FAIL], "\n".join(f"{o.name}: {o.detail}" for o in by[Verdict.FAIL])
    keys = {"no-key-is-refused", "a-wrong-key-is-refused", "a-token-stands-for-its-key"}
    assert {o.name for o in by[Verdict.SKIP]} == keys
    assert len(by[Verdict.PASS]) > 100
    print(", ".join(f"{verdict.value}: {len(found)}" for verdict, found in by.items()))


@pytest.mark.parametrize("server", [FORMS[1]], indirect=True)
def test_torch_and_vllm_hold_the_claims_of_the_conformance_suite(server: Any) -> None:
    hold_the_claims(server)


@pytest.mark.nightly
@pytest.mark.parametrize("server", [FORMS[0]], indirect=True)
def test_fsdp2_and_torch_hold_the_claims_of_the_conformance_suite(server: Any) -> None:
    hold_the_claims(server)


class Rollouts:
    """An RL-like loop of our SDK: train, publish, sample, score. Everything has a seed, so two loops are alike."""

    steps, prompts = 3, 6

    def __init__(self, url: str) -> None:
        import tinker

        self.tinker = tinker
        self.service = tinker.ServiceClient(base_url=url, api_key="tml-test")

    def datum(self, step: int) -> Any:
        types = self.tinker.types
        tokens = [(7 * step + 3 * i) % 500 + 3 for i in range(25)]
        size = len(tokens) - 1
        return types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={
                "target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[size]),
                "weights": types.TensorData(data=[1.0] * size, dtype="float32", shape=[size]),
            },
        )

    def run(self, disturb: Callable[[int, str], None] = lambda step, phase: None) -> tuple[Any, Any, Any]:
        """Losses, tokens, logprobs. ``disturb`` is called while the requests of a phase are on their way."""
        types = self.tinker.types
        training = self.service.create_lora_training_client(base_model="tiny", rank=8, seed=3).result(timeout=300)
        losses, tokens, logprobs = [], [], []
        for step in range(self.steps):
            forward = training.forward_backward([self.datum(step), self.datum(step + 1)], "cross_entropy")
            stepped = training.optim_step(types.AdamParams(learning_rate=1e-2))
            disturb(step, "training")
            losses.append(forward.result(timeout=300).metrics["loss:sum"])
            stepped.result(timeout=300)
            sampler = training.save_weights_and_get_sampling_client().result(timeout=300)
            prompts = [types.ModelInput.from_ints([3 + step, 40 + i, 7]) for i in range(self.prompts)]
            samples = [
                sampler.sample(prompt, 1, types.SamplingParams(max_tokens=60, seed=i, temperature=1.0, stop=[]))
                for i, prompt in enumerate(prompts)
            ]
            disturb(step, "sampling")
            for sample in samples:
                (sequence,) = sample.result(timeout=300).sequences
                tokens.append(list(sequence.tokens))
                logprobs.extend(sequence.logprobs)
            logprobs.extend(sampler.compute_logprobs(prompts[0]).result(timeout=300)[1:])
        return losses, tokens, logprobs


def kill(server: Any, name: str) -> None:
    """kill -9 of the first process of the server with a name, as soon as there is one."""
    deadline = time.monotonic() + 120
    while not (found := server.processes(name)):
        assert time.monotonic() < deadline, f"no process {name}\n{server.log()}"
        time.sleep(0.1)
    os.kill(found[0], signal.SIGKILL)


def kill_head(server: Any) -> None:
    """kill -9 of Ray's head; returns once the runtime has noticed, which then starts anew."""
    import psutil

    runtime = psutil.Process(server.processes("tinker_backend.runtime")[0])
    kill(server, "gcs_server")
    runtime.wait(90)


def test_kills_of_a_rank_a_replica_and_the_head_change_no_number(server: Any) -> None:
    """A rank while training requests wait, or a replica while samples wait; then Ray's head, while training requests wait."""
    calm = Rollouts(server.url).run()
    victim, phase = ("TrainRank", "training") if server.form[0] == "fsdp2_train" else ("VllmReplica", "sampling")
    kills = {(0, phase): lambda: kill(server, victim), (1, "training"): lambda: kill_head(server)}
    done: list[str] = []

    def disturb(step: int, phase: str) -> None:
        if (strike := kills.get((step, phase))) is not None:
            strike()
            done.append(phase)

    started = time.monotonic()
    losses, tokens, logprobs = Rollouts(server.url).run(disturb)
    assert len(done) == 2
    assert losses == pytest.approx(calm[0], rel=1e-5), server.log()
    assert tokens == calm[1], server.log()
    np.testing.assert_allclose(logprobs, calm[2], atol=1e-4)
    print(f"struck twice, the run took {time.monotonic() - started:.0f} s")
    log = (server.folder / "logs" / "runtime.log").read_text(errors="replace")
    assert ("the trainer is lost" if victim == "TrainRank" else "replica 0 is lost") in log


@pytest.mark.nightly
def test_a_server_goes_on_after_its_runtime_was_killed_with_all_of_ray(server: Any) -> None:
    """kill -9 of the runtime process: its actors end with it, and the next one starts over from the snapshots."""
    import psutil

    before = {name: server.processes(name) for name in ("raylet", "gcs_server", "TrainRank", "VllmReplica")}
    calm = Rollouts(server.url).run()
    began = time.monotonic()
    assert Rollouts(server.url).run()[1] == calm[1]
    seconds = time.monotonic() - began
    struck: list[Any] = []
    threads = [threading.Thread(target=lambda: struck.append(Rollouts(server.url).run()))]
    threads[0].start()
    time.sleep(seconds / 3)  # amid the run
    kill(server, "tinker_backend.runtime")
    threads[0].join(500)
    assert struck and struck[0][0] == pytest.approx(calm[0], rel=1e-5) and struck[0][1] == calm[1], server.log()
    gone = [psutil.Process(pid) for pids in before.values() for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(gone, timeout=60)
    assert not alive, alive
