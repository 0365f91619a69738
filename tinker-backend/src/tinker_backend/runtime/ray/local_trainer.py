"""The embedded trainer under the cluster engine: one GPU or the CPU of this process, beside vLLM replicas."""

from __future__ import annotations

import socket
from collections.abc import Callable

import torch

from tinker_backend.runtime.ray.prompt_scoring import AdapterShelf, score_prompt
from tinker_backend.runtime.ray.weight_broadcast import Channel, pieces_of, send
from tinker_backend.runtime.roles import (
    LossRequest,
    LossResult,
    OptimParams,
    RunSpec,
    RuntimeFault,
    SampleRequest,
    SampleResult,
    SavedWeights,
    SaveKind,
)
from tinker_backend.runtime.torch_trainer import TorchTrainer
from tinker_backend.runtime.training_run import FullLayout


class LocalTrainer:
    """Adds prompt scores to a TorchTrainer, whose runs it holds."""

    def __init__(self, trainer: TorchTrainer, address: Callable[[], str]) -> None:
        self.trainer, self._address = trainer, address
        base = next(iter(trainer.models.values()))
        self._base, self._shelf = base, AdapterShelf(base)

    @property
    def runs(self) -> list[str]:
        """Runs that are held."""
        return list(self.trainer.runs)

    def create(self, run: RunSpec) -> None:
        """Adds a run."""
        self.trainer.create(run)

    def forward_backward(self, batch: list[LossRequest]) -> list[LossResult | RuntimeFault]:
        """Many runs in one pass."""
        return self.trainer.forward_backward(batch)

    def optim_step(self, run_id: str, params: OptimParams) -> dict[str, float]:
        """One AdamW step of a run."""
        return self.trainer.optim_step(run_id, params)

    def save(self, run_id: str, path: str, kind: SaveKind) -> SavedWeights:
        """Writes a folder."""
        return self.trainer.save(run_id, path, kind)

    def load(self, run: RunSpec, path: str, optimizer: bool) -> None:
        """Creates or overwrites a run."""
        self.trainer.load(run, path, optimizer)

    def drop(self, run_id: str) -> None:
        """Forgets a run."""
        self.trainer.drop(run_id)

    @property
    def device(self) -> str:
        """``cuda`` or ``cpu``."""
        return self._base.device.type

    def is_full(self, run_id: str) -> bool:
        """Whether a run trains all weights."""
        return self.trainer.run(run_id).is_full

    def channel_host(self) -> tuple[str, int]:
        """Where this process can listen for samplers."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return self._address(), int(probe.getsockname()[1])

    def send_weights(self, run_id: str, channel: Channel) -> None:
        """Broadcasts all weights of a run."""
        run = self.trainer.run(run_id)
        assert isinstance(run.layout, FullLayout)
        plan, dtype, fused = self._base.architecture, self._base.dtype, run.layout.tensors(run.values)
        send((piece for name in run.layout.places for piece in pieces_of(plan, name, fused[name], dtype)), channel)

    def release(self) -> None:
        """Gives the GPU memory that nothing uses to other processes."""
        if self._base.device.type == "cuda":
            torch.cuda.empty_cache()

    def score(self, request: SampleRequest, path: str | None) -> SampleResult:
        """What the request asks about its prompt, under a sampler folder's adapter or the base."""
        return score_prompt(self._base, self._shelf, request, path)
