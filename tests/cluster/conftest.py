"""Ray on this machine, tiny models, and embedded engines to compare with."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
NAME = "tiny"


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

    def make(family: str = "qwen3", tied: bool = False) -> Path:
        from tinker_backend.models.tiny import make_tiny_model

        return make_tiny_model(root / f"{family}-{tied}", family, tied=tied)

    return make


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
