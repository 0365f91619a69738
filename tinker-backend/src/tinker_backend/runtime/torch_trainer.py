"""The embedded trainer: all runs of a base model go through one forward and one backward."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping

import torch
from torch import Tensor

from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.datum_pack import PreparedRequest, by_blame, micro_batches, prepare
from tinker_backend.runtime.micro_batch_pass import MicroBatchPass, Tally
from tinker_backend.runtime.roles import (
    LossRequest,
    LossResult,
    OptimParams,
    RunSpec,
    RuntimeFault,
    SavedWeights,
    SaveKind,
)
from tinker_backend.runtime.training_run import TrainingRun, new_run
from tinker_backend.runtime.weight_files import load_run, save_run

log = logging.getLogger(__name__)

Steps = Generator[None, None, list[LossResult | RuntimeFault]]


class TorchTrainer:
    """Runs over base models. Not thread-safe: one thread drives it."""

    def __init__(self, models: Mapping[str, BaseModel], max_tokens_per_batch: int, checkpointing: bool) -> None:
        self.models = models
        self.runs: dict[str, TrainingRun] = {}
        self.max_tokens_per_batch = max_tokens_per_batch
        self.checkpointing = checkpointing

    def run(self, run_id: str) -> TrainingRun:
        """The run. Raises RuntimeFault (server) when the runtime does not hold it."""
        if run_id not in self.runs:
            raise RuntimeFault(f"run {run_id!r} is not loaded in the runtime", "server")
        return self.runs[run_id]

    def base(self, name: str) -> BaseModel:
        """The base model by name or alias. Raises RuntimeFault (user)."""
        if name not in self.models:
            raise RuntimeFault(f"base_model {name!r} is not served; served: {', '.join(self.models)}", "user")
        return self.models[name]

    def create(self, run: RunSpec) -> None:
        """Adds a run. Raises RuntimeFault (user) for a rank, optimizer or base model that is not possible."""
        self.runs[run.run_id] = new_run(run, self._checked(run))

    def _checked(self, run: RunSpec) -> BaseModel:
        base, lora = self.base(run.base_model), run.lora
        if not 0 <= lora.rank <= base.max_lora_rank:
            raise RuntimeFault(
                f"rank {lora.rank} is not possible; 1 to {base.max_lora_rank}, or 0 to train all weights", "user"
            )
        if lora.rank and not (lora.train_attn or lora.train_mlp or lora.train_unembed):
            raise RuntimeFault("at least one of train_attn, train_mlp and train_unembed must be true", "user")
        if run.optimizer != "adamw":
            raise RuntimeFault(f"optimizer {run.optimizer!r} is not supported; use adamw", "user")
        return base

    def forward_backward(self, batch: list[LossRequest]) -> list[LossResult | RuntimeFault]:
        """Many runs in one pass; a request that fails yields a RuntimeFault in its place and harms no other."""
        steps = self.forward_backward_steps(batch)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value

    def forward_backward_steps(self, batch: list[LossRequest]) -> Steps:
        """The same, handing control back after every micro-batch."""
        results: list[LossResult | RuntimeFault | None] = [None] * len(batch)
        groups: dict[str, list[PreparedRequest]] = {}
        for index, request in enumerate(batch):
            try:
                run = self.run(request.run_id)
                prepared = prepare(index, request, run)
            except RuntimeFault as fault:
                results[index] = fault
                continue
            key = f"full {request.run_id}" if run.is_full else f"base {run.base.name}"
            groups.setdefault(key, []).append(prepared)
        for group in groups.values():
            group.sort(key=lambda p: p.request.run_id)
            yield from self._guarded(group, results)
        return [RuntimeFault("the request was lost in the trainer") if r is None else r for r in results]

    def _guarded(
        self, group: list[PreparedRequest], results: list[LossResult | RuntimeFault | None]
    ) -> Generator[None, None, None]:
        """Runs a group; when it fails, each request alone, so that only the culprit fails."""
        try:
            yield from self._pass(group, results)
        except Exception as error:
            log.exception("a pass over %d requests failed", len(group))
            if len(group) == 1:
                message = f"forward_backward failed: {type(error).__name__}: {error}"
                results[group[0].index] = error if isinstance(error, RuntimeFault) else RuntimeFault(message)
                return
            for prepared in group:
                yield from self._guarded([prepared], results)

    def _pass(
        self, group: list[PreparedRequest], results: list[LossResult | RuntimeFault | None]
    ) -> Generator[None, None, None]:
        tallies = {p.index: Tally() for p in group}
        staged: dict[str, Tensor] = {}
        for prepared in group:
            if not prepared.request.forward_only and prepared.run.spec.run_id not in staged:
                staged[prepared.run.spec.run_id] = torch.zeros_like(prepared.run.values)
        batches = micro_batches(group, self.max_tokens_per_batch, group[0].run.base.device)
        for number, batch in enumerate(batches):
            if number:
                yield
            MicroBatchPass(batch, staged, tallies, self.checkpointing).execute()
        broken = {run_id for run_id, flat in staged.items() if not bool(torch.isfinite(flat.sum()))}
        guilty, suspects = by_blame(group, broken)
        for prepared in group:
            results[prepared.index] = tallies[prepared.index].result()
        for prepared in guilty:
            results[prepared.index] = RuntimeFault(
                f"the gradient is not finite (loss {tallies[prepared.index].loss}); nothing was accumulated. "
                "Check logprobs and advantages for extreme values, or lower the learning rate",
                "user",
            )
        for run_id, flat in staged.items():
            if run_id not in broken:
                self.runs[run_id].add_gradients(flat)
        del staged
        for prepared in suspects:
            yield from self._guarded([prepared], results)

    def optim_step(self, run_id: str, params: OptimParams) -> dict[str, float]:
        """One AdamW step of a run."""
        return self.run(run_id).optim_step(params)

    def save(self, run_id: str, path: str, kind: SaveKind) -> SavedWeights:
        """Writes the folder ``path`` atomically."""
        return save_run(self.run(run_id), path, kind)

    def load(self, run: RunSpec, path: str, optimizer: bool) -> None:
        """Creates or overwrites a run from a saved folder."""
        self.runs[run.run_id] = load_run(run, self._checked(run), path, optimizer)

    def drop(self, run_id: str) -> None:
        """Forgets a run."""
        self.runs.pop(run_id, None)
