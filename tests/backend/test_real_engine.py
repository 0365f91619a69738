"""The server over the embedded engine with a real small model: kills cost a pause and no digit."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODEL = Path(os.environ.get("TINKER_TEST_MODEL", Path.home() / ".cache/tinker-backend/models/SmolLM2-135M-Instruct"))
pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 6
NAME = MODEL.name


@pytest.fixture
def make_real(make_backend: Any) -> Any:
    """Makes servers over the real engine; skips the test when there is no model."""
    if not (MODEL / "config.json").is_file():
        pytest.skip(f"no model in {MODEL}")
    engine = {"pretrain": str(MODEL), "sequence_length": 512, "threads": 1}
    command = [sys.executable, "-m", "tinker_backend.runtime"]
    return lambda name: make_backend(engine, name, runtime={"command": command})


def train(wire: Any, model: str, disturb: Any) -> tuple[list[float], str]:
    """Losses of the steps, and the path of the weights after them."""
    promises = []
    for step in range(STEPS):
        tokens = [(7 * step + 3 * i) % 2000 + 1 for i in range(48)]
        promises.append(wire.forward_backward(model, 2 * step + 1, tokens=tokens))
        wire.optim_step(model, 2 * step + 2, rate=1e-3)
    saved = wire.post("save_weights_external", model_id=model, seq_id=2 * STEPS + 1, path="end")
    disturb()
    losses = [wire.result(promise, deadline=300)["metrics"]["loss:sum"] for promise in promises]
    return losses, wire.result(saved, deadline=300)["path"]


def weights(wire: Any, path: str) -> dict[str, Any]:
    """The downloaded adapter."""
    import httpx
    from safetensors.numpy import load

    run = path.split("/")[2]
    urls = wire.http.get(f"training_runs/{run}/checkpoints/external_weights/end/external_weights_urls").json()["urls"]
    return dict(load(httpx.get(urls["adapter_model.safetensors"]).content))


def test_kills_of_runtime_and_server_change_no_number(make_real: Any, new_wire: Any) -> None:
    calm = make_real("calm")
    wire = new_wire(calm.url)
    losses, path = train(wire, wire.model(base_model=NAME), lambda: None)
    expected = weights(wire, path)
    calm.stop()
    backend = make_real("struck")
    wire = new_wire(backend.url)

    def disturb() -> None:
        time.sleep(0.4)
        backend.kill_runtime()
        time.sleep(6)
        backend.kill()
        backend.start()
        time.sleep(0.5)
        backend.kill_runtime()

    struck_losses, path = train(wire, wire.model(base_model=NAME), disturb)
    np.testing.assert_allclose(struck_losses, losses, rtol=1e-6)
    struck = weights(wire, path)
    assert struck.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(struck[name], value, atol=1e-6, err_msg=name)
    assert losses[-1] != losses[0]
