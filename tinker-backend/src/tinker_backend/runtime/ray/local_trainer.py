"""The embedded trainer under the cluster engine: one GPU or the CPU of this process, beside vLLM replicas."""

from __future__ import annotations

from tinker_backend.runtime.ray.prompt_scoring import AdapterShelf, score_prompt
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


class LocalTrainer:
    """Adds prompt scores to a TorchTrainer, whose runs it holds."""

    def __init__(self, trainer: TorchTrainer) -> None:
        self.trainer = trainer
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

    def score(self, request: SampleRequest, path: str | None) -> SampleResult:
        """What the request asks about its prompt, under a sampler folder's adapter or the base."""
        return score_prompt(self._base, self._shelf, request, path)
