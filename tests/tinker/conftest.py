from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import tinker
from tinker import _pace, types


def _load_mock() -> Any:
    name = "tinker_sdk_mock"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("mock_tinker.py"))
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def mock() -> Any:
    """The module of the mock server: Answer, fb_output, sample_output, ..."""
    return _load_mock()


@pytest.fixture(autouse=True)
def sdk_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable, key or telemetry of the machine reaches a test."""
    for name in [
        "TINKER_API_KEY",
        "TINKER_BASE_URL",
        "TINKER_CREDENTIAL_CMD",
        "TINKER_PROJECT_ID",
        "TINKER_TAGS",
        "TINKER_LOG",
        "CLOUDFLARE_ACCESS_CLIENT_ID",
        "CLOUDFLARE_ACCESS_CLIENT_SECRET",
    ]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def server(mock: Any) -> Iterator[Any]:
    running = mock.MockTinker()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def service(server: Any) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=server.url, api_key="tml-test")


@pytest.fixture
def training(service: tinker.ServiceClient) -> tinker.TrainingClient:
    return service.create_lora_training_client("Qwen/Qwen3-8B", rank=16, seed=1).result(30)


@pytest.fixture
def sampling(training: tinker.TrainingClient) -> tinker.SamplingClient:
    return training.save_weights_and_get_sampling_client().result(30)


_waiting_test: ContextVar[object] = ContextVar("waiting_test", default=None)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Waits between tries take no time; their lengths are listed. Work that earlier tests left behind is ignored."""
    lengths: list[float] = []
    token = _waiting_test.set(lengths)

    async def sleep(seconds: float) -> None:
        if _waiting_test.get() is lengths:
            lengths.append(seconds)
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(seconds)

    monkeypatch.setattr(_pace, "sleep", sleep)
    yield lengths
    _waiting_test.reset(token)


@pytest.fixture
def datum() -> Callable[..., types.Datum]:
    def make(length: int = 4, **inputs: Any) -> types.Datum:
        tensors = inputs or {"target_tokens": list(range(2, length + 2)), "weights": [0.0] + [1.0] * (length - 1)}
        return types.Datum(types.ModelInput.from_ints(list(range(1, length + 1))), tensors)

    return make


@pytest.fixture
def prompt() -> types.ModelInput:
    return types.ModelInput.from_ints([1, 2, 3])
