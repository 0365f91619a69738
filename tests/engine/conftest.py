"""Tiny models, trainers and samplers of the embedded engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tinker_backend.models.tiny import make_tiny_model
from tinker_backend.runtime.base_model import BaseModel, load_base_model
from tinker_backend.runtime.roles import Datum, LoraSpec, LossRequest, RunSpec
from tinker_backend.runtime.torch_sampler import TorchSampler
from tinker_backend.runtime.torch_trainer import TorchTrainer

torch.set_num_threads(1)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

CONTEXT = 256


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes (once) the folder of a tiny model: ``tiny_folder("llama", tied=False)``."""
    root = tmp_path_factory.mktemp("models")

    def make(family: str, tied: bool = True, **options: object) -> Path:
        name = "-".join([family, "tied" if tied else "untied", *(f"{k}{v}" for k, v in options.items())])
        return make_tiny_model(root / name, family, tied=tied, **options)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def tiny_base(tiny_folder: Callable[..., Path]) -> Callable[..., BaseModel]:
    """Loads (once) a tiny model in float32 under the name ``tiny``."""
    loaded: dict[tuple[object, ...], BaseModel] = {}

    def load(family: str = "qwen3", tied: bool = True, dtype: torch.dtype = torch.float32) -> BaseModel:
        key = (family, tied, dtype)
        if key not in loaded:
            folder = tiny_folder(family, tied)
            loaded[key] = load_base_model(folder, "tiny", [], dtype, torch.device("cpu"), CONTEXT, 64)
        return loaded[key]

    return load


@pytest.fixture
def base(tiny_base: Callable[..., BaseModel]) -> BaseModel:
    """A tiny Qwen3 with untied embeddings."""
    return tiny_base("qwen3", False)


@pytest.fixture
def new_trainer(base: BaseModel) -> Callable[..., TorchTrainer]:
    """Makes a trainer over the base model."""

    def make(tokens: int = 4096, checkpointing: bool = False, model: BaseModel | None = None) -> TorchTrainer:
        return TorchTrainer({"tiny": model or base}, tokens, checkpointing)

    return make


@pytest.fixture
def new_sampler(base: BaseModel) -> Callable[..., TorchSampler]:
    """Makes a sampler over the base model, prepared as an idle engine does it, which serves the base as ``base``."""

    def make(
        kv_tokens: int = 8192, batch: int = 16, read_tokens: int = 64, model: BaseModel | None = None
    ) -> TorchSampler:
        sampler = TorchSampler({"tiny": model or base}, kv_tokens, batch, read_tokens)
        for _ in sampler.prepare():
            pass
        sampler.load("base", "tiny", None)
        return sampler

    return make


class Data:
    """Seeded random datums for the tiny vocabulary."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def tokens(self, length: int) -> np.ndarray:
        """int32 token ids."""
        return self.rng.integers(3, 512, length).astype(np.int32)

    def datum(self, length: int, weighted: bool = True) -> Datum:
        """A cross_entropy datum; half of the weights are zero."""
        tokens = self.tokens(length + 1)
        inputs: dict[str, np.ndarray] = {"target_tokens": tokens[1:].astype(np.int64)}
        if weighted:
            weights = self.rng.random(length) * (self.rng.random(length) > 0.5)
            inputs["weights"] = weights.astype(np.float32)
        return Datum(tokens[:-1], inputs)

    def policy_datum(self, length: int, **extra: np.ndarray) -> Datum:
        """A datum with logprobs and advantages."""
        plain = self.datum(length, weighted=False)
        logprobs = (-6.2 + 0.4 * self.rng.standard_normal(length)).astype(np.float32)
        advantages = self.rng.standard_normal(length).astype(np.float32)
        return Datum(plain.tokens, {**plain.inputs, "logprobs": logprobs, "advantages": advantages, **extra})

    def batch(self, count: int, longest: int = 40) -> list[Datum]:
        """Datums of unequal length."""
        return [self.datum(int(self.rng.integers(1, longest))) for _ in range(count)]


@pytest.fixture
def data() -> Data:
    """Random datums, the same in every run of a test."""
    return Data(7)


@pytest.fixture
def disturbed() -> Callable[[TorchTrainer, str, LoraSpec], None]:
    """Creates a run whose adapter changes the model at once (B is not zero)."""

    def create(trainer: TorchTrainer, run_id: str, lora: LoraSpec) -> None:
        trainer.create(RunSpec(run_id, "tiny", lora))
        run = trainer.runs[run_id]
        generator = torch.Generator().manual_seed(lora.seed or 0)
        run.values.add_(0.05 * torch.randn(run.values.shape, generator=generator))

    return create


@pytest.fixture
def cross_entropy() -> Callable[..., LossRequest]:
    """Makes a cross_entropy request."""

    def make(run_id: str, batch: list[Datum], forward_only: bool = False) -> LossRequest:
        return LossRequest(run_id, 1, batch, "cross_entropy", forward_only=forward_only)

    return make
