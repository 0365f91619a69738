"""Ray on this machine, tiny models, and embedded engines to compare with."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray keeps its mode for the life of a process, and a head of another mode takes this process's actors for abandoned.
os.environ["RAY_AUTH_MODE"] = "disabled"
NAME = "tiny"
VLLM_SIZES = {"hidden_size": 128, "heads": 2, "kv_heads": 1}
"""vLLM has no attention kernel for heads of 16 on a CPU."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what this environment cannot run; ``tests/cluster/install.sh`` makes one that can."""
    for marker in ("ray", "vllm"):
        if importlib.util.find_spec(marker) is None:
            for item in items:
                if item.get_closest_marker(marker):
                    item.add_marker(pytest.mark.skip(reason=f"{marker} is not installed (tests/cluster/install.sh)"))


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes (once) the folder of a tiny model."""
    root = tmp_path_factory.mktemp("models")

    def make(family: str = "qwen3", tied: bool = False, **sizes: int) -> Path:
        from tinker_backend.models.tiny import make_tiny_model

        name = "-".join([family, str(tied), *(f"{key}{value}" for key, value in sizes.items())])
        return make_tiny_model(root / name, family, tied=tied, **sizes)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def vllm_sizes() -> dict[str, int]:
    """Options of a tiny model that vLLM computes on a CPU."""
    return VLLM_SIZES


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """A Ray head that tests join, as a cluster's processes do: to start one takes longer than most of them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: UNIX sockets are made in it
    options = [
        "--num-cpus=8",
        f"--port={port}",
        "--node-ip-address=127.0.0.1",
        "--include-dashboard=false",
        "--no-monitor",
    ]
    options += ["--object-store-memory=100000000", "--disable-usage-stats", f"--temp-dir={folder}"]
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        assert head.poll() is None and time.monotonic() < deadline, "Ray's head does not start"
        time.sleep(0.1)
    yield f"127.0.0.1:{port}"
    head.terminate()
    try:
        head.wait(30)
    except subprocess.TimeoutExpired:
        head.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def open_trainer() -> Iterator[Callable[..., Any]]:
    """Starts FSDP2 ranks in a Ray of this test; both end with it."""
    made: list[Any] = []

    def open_one(folder: Path, ranks: int = 2, **settings: Any) -> Any:
        from tinker_backend.config import EngineConfig
        from tinker_backend.runtime.ray.fsdp_trainer import FsdpTrainer
        from tinker_backend.runtime.ray.placement import place
        from tinker_backend.runtime.ray.ray_cluster import RayCluster
        from tinker_backend.runtime.ray.train_rank import RankSettings

        role = {"strategy_args": {"strategy_name": "fsdp2_train"}, "device_mapping": list(range(ranks))}
        cluster_keys = {"cpus": max(2, ranks), "object_store_bytes": 100 * 1024 * 1024, "call_timeout_seconds": 120}
        config = EngineConfig.model_validate(
            {"pretrain": str(folder), "device": "cpu", "actor_train": role, "cluster": cluster_keys}
        )
        cluster = RayCluster(config.cluster, place(config))
        made.append(cluster.close)
        cluster.open()
        given = {"context": 256, "max_lora_rank": 64, "threads": 1, "timeout_seconds": 60} | settings
        trainer = FsdpTrainer(cluster, RankSettings(0, ranks, "", str(folder), NAME, **given))
        trainer.open()
        return trainer

    yield open_one
    for close in reversed(made):
        close()


@pytest.fixture
def embedded() -> Callable[..., Any]:
    """Makes an embedded trainer over a model folder."""

    def make(folder: Path, tokens: int = 4096) -> Any:
        import torch

        from tinker_backend.runtime.base_model import load_base_model
        from tinker_backend.runtime.torch_trainer import TorchTrainer

        torch.set_num_threads(1)
        base = load_base_model(folder, NAME, [], torch.float32, torch.device("cpu"), 256, 64)
        return TorchTrainer({NAME: base}, tokens, False)

    return make


class ClusterData:
    """Seeded datums for the tiny vocabulary."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(11)

    def datum(self, length: int) -> Any:
        """A cross_entropy datum; half of its weights are zero."""
        from tinker_backend.runtime.roles import Datum

        tokens = self.rng.integers(3, 512, length + 1)
        weights = self.rng.random(length) * (self.rng.random(length) > 0.5)
        inputs = {"target_tokens": tokens[1:].astype(np.int64), "weights": weights.astype(np.float32)}
        return Datum(tokens[:-1].astype(np.int32), inputs)

    def policy_datum(self, length: int, **extra: Any) -> Any:
        """A datum with logprobs and advantages."""
        from tinker_backend.runtime.roles import Datum

        plain = self.datum(length)
        logprobs = (-6.2 + 0.4 * self.rng.standard_normal(length)).astype(np.float32)
        inputs = {"target_tokens": plain.inputs["target_tokens"], "logprobs": logprobs}
        inputs["advantages"] = self.rng.standard_normal(length).astype(np.float32)
        return Datum(plain.tokens, {**inputs, **extra})

    def batch(self, count: int) -> list[Any]:
        """Datums of unequal length."""
        return [self.datum(int(self.rng.integers(2, 40))) for _ in range(count)]


@pytest.fixture
def cluster_data() -> ClusterData:
    """Random datums, the same in every run of a test."""
    return ClusterData()


def without_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment that says nothing of Ray, as that of a server is."""
    return {name: value for name, value in environment.items() if not name.startswith("RAY_")}


class ClusterServer:
    """``tinker-backend serve`` over a cluster engine, in a folder."""

    model: Path
    form: tuple[str, str]

    def __init__(self, folder: Path, engine: dict[str, Any]) -> None:
        import yaml

        folder.mkdir(parents=True)
        (folder / "engine.yaml").write_text(yaml.safe_dump(engine))
        document = {"backend": {"port": 0}, "runtime": {"engine": "engine.yaml"}}
        (folder / "runtime.yaml").write_text(yaml.safe_dump(document))
        self.folder, self.output = folder, folder / "serve.out"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tinker_backend", "serve", "--config", str(folder / "runtime.yaml")],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**without_ray(os.environ), "OMP_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + 240
        while b"ready on http" not in self.output.read_bytes():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"the server did not start:\n{self.output.read_text()[-4000:]}\n{self.log()}")
            time.sleep(0.05)
        text = self.output.read_text()
        self.url = text[text.index("ready on http") :].split()[2]

    def log(self) -> str:
        """What the runtime wrote."""
        path = self.folder / "logs" / "runtime.log"
        return path.read_text(errors="replace")[-6000:] if path.exists() else ""

    def processes(self, name: str) -> list[int]:
        """Ids of the processes of this server whose title or command holds ``name``."""
        import psutil

        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if name in " ".join([child.name(), *child.cmdline()]):
                    found.append(child.pid)
        return found

    def stop(self) -> None:
        """SIGTERM, and SIGKILL where that is not enough."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture(scope="session")
def start_server(tiny_models: Callable[..., Path]) -> Callable[..., ClusterServer]:
    """Starts a server in a folder, over a tiny model with two strategies; the caller stops it."""

    def start(folder: Path, train: str, infer: str) -> ClusterServer:
        roles: dict[str, Any] = {
            "actor_train": {
                "strategy_args": {"strategy_name": train, "strategy_config": {"dtype": "float32"}},
                "device_mapping": [0, 1] if train == "fsdp2_train" else None,
                "model_args": {"max_lora_rank": 32},
            },
            "actor_infer": {
                "strategy_args": {"strategy_name": infer},
                "device_mapping": [2] if infer == "vllm" else None,
            },
        }
        if infer == "vllm":
            roles["actor_infer"]["strategy_args"]["strategy_config"] = {"enforce_eager": True, "max_num_seqs": 16}
        model = tiny_models("llama", **VLLM_SIZES)
        engine = {
            "pretrain": str(model),
            "model_name": NAME,
            "device": "cpu",
            "threads": 1,
            "sequence_length": 256,
            "cluster": {"cpus": 3, "object_store_bytes": 100 * 1024 * 1024, "call_timeout_seconds": 200},
            **roles,
        }
        server = ClusterServer(folder, engine)
        server.model = model
        return server

    return start


class EngineDriver:
    """Calls an engine in this process and waits."""

    prompt = np.array([5, 17, 300, 42, 8, 77, 123, 9], dtype=np.int32)

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.numbers = iter(range(10**6))

    def start(self, method: str, **params: Any) -> Callable[[], Any]:
        """Begins a call; what it returns waits for the answer."""
        from tinker_backend.runtime.calls import Call
        from tinker_backend.runtime.roles import RuntimeFault

        done = threading.Event()
        answers: list[Any] = []
        self.engine.submit(Call(method, params, lambda answer: (answers.append(answer), done.set())))

        def wait() -> Any:
            assert done.wait(300), f"{method} was not answered"
            if isinstance(answers[0], RuntimeFault):
                raise answers[0]
            return answers[0]

        return wait

    def __call__(self, method: str, **params: Any) -> Any:
        return self.start(method, **params)()

    def begin_sample(self, sampler: str, tokens: Any = prompt, **fields: Any) -> Callable[[], Any]:
        """Begins a sample of six tokens with a seed."""
        from tinker_backend.runtime.roles import SampleRequest

        fields = {"max_tokens": 6, "seed": 3} | fields
        return self.start("sample", request=SampleRequest(f"r{next(self.numbers)}", sampler, tokens, **fields))

    def sample(self, sampler: str, tokens: Any = prompt, **fields: Any) -> Any:
        """A SampleResult."""
        return self.begin_sample(sampler, tokens, **fields)()

    def logprobs(self, run: str, prompt: Any, tokens: Any) -> Any:
        """The trainer's logprobs of ``tokens`` after ``prompt``."""
        from tinker_backend.runtime.roles import Datum, LossRequest

        whole = np.concatenate([prompt, tokens])
        datum = Datum(whole[:-1].astype(np.int32), {"target_tokens": whole[1:].astype(np.int64)})
        request = LossRequest(run, 1, [datum], "cross_entropy", forward_only=True)
        (answer,) = self("forward_backward", batch=[request])
        assert not isinstance(answer, Exception), answer
        return np.asarray(answer.outputs[0]["logprobs"])[-len(tokens) :]

    def train(self, run: str, rank: int, steps: int = 2, rate: float = 0.02) -> None:
        """Creates a run and takes steps with it."""
        from tinker_backend.runtime.roles import LoraSpec, RunSpec

        self("create", run=RunSpec(run, NAME, LoraSpec(rank=rank, seed=7)))
        self.step(run, steps, rate)

    def step(self, run: str, steps: int = 1, rate: float = 0.02) -> None:
        """Takes steps on random tokens."""
        from tinker_backend.runtime.roles import Datum, LossRequest, OptimParams

        rng = np.random.default_rng(len(run))
        for _ in range(steps):
            tokens = rng.integers(3, 500, 30)
            datum = Datum(tokens[:-1].astype(np.int32), {"target_tokens": tokens[1:].astype(np.int64)})
            self("forward_backward", batch=[LossRequest(run, 1, [datum], "cross_entropy")])
            self("optim_step", run_id=run, params=OptimParams(learning_rate=rate))


@pytest.fixture(scope="module")
def open_vllm_engine(tiny_models: Callable[..., Path], ray_address: str) -> Callable[..., Any]:
    """Opens a torch trainer and one vLLM replica of so many devices over a tiny model, both for the CPU."""

    @contextlib.contextmanager
    def open_one(devices: int, **sizes: int) -> Iterator[EngineDriver]:
        from tinker_backend.config import EngineConfig
        from tinker_backend.runtime.ray.build_cluster import build_cluster

        vllm = {"strategy_name": "vllm", "strategy_config": {"enforce_eager": True, "max_num_seqs": 16}}
        mapped = {"device_mapping": list(range(devices)), "num_gpus_per_worker": devices}
        config = EngineConfig.model_validate(
            {
                "pretrain": str(tiny_models("llama", **VLLM_SIZES | sizes)),
                "model_name": NAME,
                "device": "cpu",
                "threads": 1,
                "sequence_length": 128,
                "actor_train": {"model_args": {"dtype": "float32", "max_lora_rank": 8}},
                "actor_infer": {"strategy_args": vllm, **mapped},
                "cluster": {"address": ray_address, "call_timeout_seconds": 200},
            }
        )
        built = build_cluster(config)
        threading.Thread(target=built.engine.run, daemon=True).start()
        try:
            yield EngineDriver(built.engine)
        finally:
            built.engine.stop()

    return open_one
