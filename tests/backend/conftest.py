"""A server in a process of its own over the fake runtime, and a thin HTTP client of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tinker_backend.wire import schema

FAKE = Path(__file__).with_name("fake_runtime.py")


class BackendProcess:
    """``tinker-backend serve`` over a folder; it can be killed and started again."""

    def __init__(self, folder: Path, engine: dict[str, Any], config: dict[str, Any]) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "engine.yaml").write_text(yaml.safe_dump(engine))
        document: dict[str, Any] = {
            "backend": {"port": 0},
            "runtime": {"engine": "engine.yaml", "command": [sys.executable, str(FAKE)]},
        }
        for section, values in config.items():
            document.setdefault(section, {}).update(values)
        (folder / "runtime.yaml").write_text(yaml.safe_dump(document))
        self.start()

    def start(self) -> None:
        """Starts the server on the port it had, or a free one."""
        self.output = self.folder / "serve.out"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tinker_backend", "serve", "--config", str(self.folder / "runtime.yaml")]
                + ["--port", str(self.port)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + 60
        while b"ready on http" not in self.output.read_bytes():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{self.output.read_text()}")
            time.sleep(0.02)
        text = self.output.read_text()
        self.port = int(text[text.index("ready on http") :].split()[2].rsplit(":", 1)[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def runtime_pid(self) -> int:
        pid = httpx.get(f"{self.url}/api/v1/status").json()["runtime"]["pid"]
        assert isinstance(pid, int)
        return pid

    def kill(self) -> None:
        """kill -9 of the server (its runtime follows)."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def kill_runtime(self) -> None:
        os.kill(self.runtime_pid(), signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Wire:
    """Requests as an SDK sends them, without an SDK."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.http = httpx.Client(base_url=f"{url}/api/v1", headers={"x-api-key": key} if key else {}, timeout=60)

    def post(self, route: str, /, _status: int = 200, **body: Any) -> Any:
        answer = self.http.post(route, json=body)
        assert answer.status_code == _status, (route, answer.status_code, answer.text)
        return answer.json()

    def result(self, promise: dict[str, Any], accept: str = "application/json", deadline: float = 60) -> Any:
        """Polls as long as the server says try_again, and through restarts of it."""
        end = time.monotonic() + deadline
        while True:
            try:
                answer = self.http.post(
                    "retrieve_future", json={"request_id": promise["request_id"]}, headers={"accept": accept}
                )
            except httpx.TransportError:
                assert time.monotonic() < end, "no answer in time"
                time.sleep(0.1)
                continue
            if answer.status_code not in (408, 503):
                break
            assert time.monotonic() < end, "no result in time"
        assert answer.status_code == 200, answer.text
        return answer.json() if "json" in answer.headers["content-type"] else answer.content

    def session(self) -> str:
        session_id = self.post("create_session", tags=[], sdk_version="test", type="create_session")["session_id"]
        assert isinstance(session_id, str)
        return session_id

    def model(self, session_id: str | None = None, n: int = 0, **fields: Any) -> str:
        body = {"base_model": "fake-model", "lora_config": {"rank": 8, "seed": 7}} | fields
        promise = self.post("create_model", session_id=session_id or self.session(), model_seq_id=n, **body)
        result = self.result(promise)
        assert "error" not in result, result
        return str(result["model_id"])

    def forward_backward(
        self, model_id: str, seq_id: int, tokens: list[int] | None = None, _status: int = 200, **inputs: Any
    ) -> Any:
        tokens = tokens or [1, 2, 3]
        message = schema.ForwardBackwardRequest(
            model_id=model_id, seq_id=seq_id, loss_fn=inputs.pop("loss_fn", "cross_entropy")
        )
        message.forward_only = inputs.pop("forward_only", False)
        for key, value in inputs.pop("config", {}).items():
            message.loss_fn_config[key] = value
        add_datum(message, tokens, **inputs)
        answer = self.http.post(
            "forward_backward", content=message.SerializeToString(), headers={"content-type": "application/x-protobuf"}
        )
        assert answer.status_code == _status, (answer.status_code, answer.text)
        return answer.json()

    fill = staticmethod(lambda message, tokens, **inputs: add_datum(message, tokens, **inputs))

    def optim_step(self, model_id: str, seq_id: int, rate: float = 0.1, **fields: Any) -> Any:
        return self.post("optim_step", model_id=model_id, seq_id=seq_id, adam_params={"learning_rate": rate}, **fields)


def add_datum(message: Any, tokens: list[int], **inputs: Any) -> None:
    """Adds a datum; inputs default to shifted targets and weights of one."""
    import numpy as np

    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.array(tokens, "<i4").tobytes()
    inputs = {"target_tokens": [t + 1 for t in tokens], "weights": [1.0] * len(tokens)} | inputs
    for name, values in inputs.items():
        if values is None:
            continue
        array = np.array(values)
        tensor = datum.loss_fn_inputs[name]
        is_float = array.dtype.kind == "f"
        tensor.dtype = schema.DTYPE_FLOAT32 if is_float else schema.DTYPE_INT64
        tensor.shape.extend(array.shape)
        tensor.dense = array.astype("<f4" if is_float else "<i8").tobytes()


@pytest.fixture
def make_backend(tmp_path: Path) -> Iterator[Callable[..., BackendProcess]]:
    """Makes servers; they end with the test."""
    made: list[BackendProcess] = []

    def make(engine: dict[str, Any] | None = None, name: str = "server", **config: Any) -> BackendProcess:
        made.append(BackendProcess(tmp_path / name, engine or {}, config))
        return made[-1]

    yield make
    for backend in made:
        backend.stop()


@pytest.fixture(scope="module")
def shared_backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackendProcess]:
    """One server for the tests of a module that do it no harm."""
    backend = BackendProcess(tmp_path_factory.mktemp("shared"), {}, {})
    yield backend
    backend.stop()


@pytest.fixture
def new_wire() -> type[Wire]:
    """Makes clients of any server."""
    return Wire


@pytest.fixture
def wire(shared_backend: BackendProcess) -> Wire:
    """A client of the shared server."""
    return Wire(shared_backend.url)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a tokenizer and a chat template."""
    from tinker_backend.models.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def door_keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A key file, and the keys of ``alice`` and ``bob``."""
    from tinker_backend.auth import KeyFile

    path = tmp_path_factory.mktemp("keys") / "keys.json"
    return path, {name: KeyFile(path).create(name)[0] for name in ("alice", "bob")}


@pytest.fixture(scope="session")
def engine_backend(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, door_keys: tuple[Path, dict[str, str]]
) -> Iterator[BackendProcess]:
    """One server over the real engine: model ``tiny``, alias ``Qwen/Tiny``, and two API keys."""
    backend = BackendProcess(
        tmp_path_factory.mktemp("engine"),
        {
            "pretrain": str(tiny_model),
            "model_name": "tiny",
            "aliases": ["Qwen/Tiny"],
            "sequence_length": 512,
            "actor_train": {"model_args": {"dtype": "float32"}},
        },
        {
            "runtime": {"command": None},
            "backend": {"api_keys_file": str(door_keys[0])},
            "limits": {"long_poll_seconds": 2},
        },
    )
    yield backend
    backend.stop()


@pytest.fixture(scope="session")
def start_backend() -> type[BackendProcess]:
    """Starts a server over a folder; the caller stops it."""
    return BackendProcess
