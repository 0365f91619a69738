"""SDKs against a server whose engine is a cluster: the basic flow, and a run that survives lost ranks and a lost Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
WALK = Path(__file__).parents[1] / "peers" / "walk_basic.py"


def pythons() -> list[str]:
    """Interpreters with an SDK: ours, and the official one where there is one."""
    official = os.environ.get("TINKER_PEER_PYTHON") or os.environ.get("TINKER_TEST_PEERS_PYTHON")
    return [sys.executable, *([official] if official else [])]


def walk(python: str, url: str) -> Any:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TINKER_", "PYTHONPATH"))}
    done = subprocess.run(
        [python, "-W", "ignore", str(WALK), url, "tiny"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**environment, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize(
    ("train", "infer"), [("fsdp2_train", "torch"), pytest.param("torch", "vllm", marks=pytest.mark.vllm)]
)
def test_sdks_walk_the_basic_flow(start_server: Any, train: str, infer: str) -> None:
    server = start_server(train, infer)
    for python in pythons():
        losses = walk(python, server.url)["losses"]
        assert losses[2] < losses[0], server.log()


class Client:
    """Our SDK in this process."""

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

    def train(self, steps: int, disturb: Any) -> list[float]:
        """Losses of the steps; ``disturb(step)`` is called before each."""
        training = self.service.create_lora_training_client(base_model="tiny", rank=8, seed=3)
        losses = []
        for step in range(steps):
            disturb(step)
            done = training.forward_backward([self.datum(step), self.datum(step + 1)], "cross_entropy")
            stepped = training.optim_step(self.tinker.types.AdamParams(learning_rate=1e-2))
            losses.append(done.result(timeout=300).metrics["loss:sum"])
            stepped.result(timeout=300)
        return losses


def test_a_client_gets_the_right_numbers_through_kills_of_a_rank_and_of_the_head(start_server: Any) -> None:
    server = start_server("fsdp2_train", "torch")
    client = Client(server.url)
    calm = client.train(6, lambda step: None)

    def disturb(step: int) -> None:
        victim = {2: "TrainRank", 4: "gcs_server"}.get(step)
        if victim is not None:
            deadline = time.monotonic() + 120
            while not (found := server.processes(victim)):
                assert time.monotonic() < deadline, server.log()
                time.sleep(0.2)
            os.kill(found[0], signal.SIGKILL)

    struck = client.train(6, disturb)
    assert struck == pytest.approx(calm, rel=1e-5), server.log()
    assert "the trainer is lost" in server.log()
