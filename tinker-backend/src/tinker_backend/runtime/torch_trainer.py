"""The embedded trainer: all runs of a base model go through one forward and one backward."""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tinker_backend.runtime.attention import PackLayout, packed_attention
from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.datum_pack import MicroBatch, PreparedRequest, RequestRows, micro_batches, prepare
from tinker_backend.runtime.decoder import Adapters
from tinker_backend.runtime.head import Head, differentiate, score, score_and_differentiate
from tinker_backend.runtime.lora import AdapterLayout, AdapterSegment, GradientSink
from tinker_backend.runtime.loss_graph import run_graph
from tinker_backend.runtime.losses import LOSS_FUNCTIONS
from tinker_backend.runtime.roles import (
    Array,
    LossRequest,
    LossResult,
    OptimParams,
    RunSpec,
    RuntimeFault,
    SavedWeights,
    SaveKind,
)
from tinker_backend.runtime.training_run import FullLayout, TrainingRun, new_run
from tinker_backend.runtime.weight_files import load_run, save_run

log = logging.getLogger(__name__)

Steps = Generator[None, None, list[LossResult | RuntimeFault]]


@dataclass
class _Tally:
    """What one request has collected over its micro-batches."""

    outputs: list[dict[str, Array]] = field(default_factory=list)
    loss: float = 0.0
    tokens: int = 0
    loss_tokens: int = 0
    gap: float = 0.0
    gap_squared: float = 0.0
    gap_tokens: int = 0
    custom: dict[str, float] = field(default_factory=dict)

    def result(self) -> LossResult:
        metrics = {
            "loss:sum": self.loss,
            "tokens:sum": float(self.tokens),
            "loss_tokens:sum": float(self.loss_tokens),
        }
        if self.gap_tokens:
            metrics["kl_sample_train_v1:mean"] = self.gap / self.gap_tokens
            metrics["kl_sample_train_v2:mean"] = 0.5 * self.gap_squared / self.gap_tokens
        for name, value in self.custom.items():
            metrics[name] = value / len(self.outputs) if name.endswith(":mean") else value
        return LossResult(self.outputs, metrics)


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
        tallies = {p.index: _Tally() for p in group}
        staged: dict[str, Tensor] = {}
        for prepared in group:
            if not prepared.request.forward_only and prepared.run.spec.run_id not in staged:
                staged[prepared.run.spec.run_id] = torch.zeros_like(prepared.run.values)
        batches = micro_batches(group, self.max_tokens_per_batch, group[0].run.base.device)
        for number, batch in enumerate(batches):
            if number:
                yield
            _MicroBatchPass(batch, staged, tallies, self.checkpointing).execute()
        broken = {run_id for run_id, flat in staged.items() if not bool(torch.isfinite(flat.sum()))}
        for prepared in group:
            run_id = prepared.run.spec.run_id
            if run_id in broken and not prepared.request.forward_only:
                results[prepared.index] = RuntimeFault(
                    f"the gradient is not finite (loss {tallies[prepared.index].loss}); nothing was accumulated. "
                    "Check logprobs and advantages for extreme values, or lower the learning rate",
                    "user",
                )
                continue
            results[prepared.index] = tallies[prepared.index].result()
        for run_id, flat in staged.items():
            if run_id not in broken:
                self.runs[run_id].add_gradients(flat)

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


class _MicroBatchPass:
    """Forward, losses and backward of one micro-batch; gradients go to ``staged``, results to ``tallies``."""

    def __init__(
        self, batch: MicroBatch, staged: Mapping[str, Tensor], tallies: Mapping[int, _Tally], checkpointing: bool
    ) -> None:
        self.batch, self.staged, self.tallies, self.checkpointing = batch, staged, tallies, checkpointing
        self.run = batch.parts[0].prepared.run
        self.base = self.run.base
        self.layout = PackLayout(batch.lengths, self.base.device)

    def execute(self) -> None:
        if self.run.is_full:
            self._execute_full()
        else:
            self._execute_adapters()

    @property
    def _differentiates(self) -> bool:
        return any(not p.prepared.request.forward_only for p in self.batch.parts)

    def _segments(self) -> list[AdapterSegment]:
        segments: list[AdapterSegment] = []
        for part in self.batch.parts:
            run, sink = part.prepared.run, None
            if not part.prepared.request.forward_only and isinstance(run.layout, AdapterLayout):
                sink = GradientSink(run.layout, self.staged[run.spec.run_id])
            last = segments[-1] if segments else None
            if last is not None and last.adapter is run.adapter() and (last.sink is None) == (sink is None):
                segments[-1] = AdapterSegment(last.start, part.stop, last.adapter, last.sink)
            else:
                segments.append(AdapterSegment(part.start, part.stop, run.adapter(), sink))
        return segments

    def _hidden(self, weights: Mapping[str, Tensor], adapters: Adapters) -> Tensor:
        layout, scale = self.layout, self.base.decoder.scale
        with torch.set_grad_enabled(self._differentiates):
            return self.base.decoder.hidden(
                weights,
                self.batch.tokens,
                layout.positions.to(self.base.device),
                lambda _, q, k, v: packed_attention(q, k, v, layout, scale),
                adapters,
                self.checkpointing,
            )

    def _execute_adapters(self) -> None:
        segments = self._segments()
        weights = self.base.weights
        hidden = self._hidden(weights, Adapters(segments))
        head = self.base.decoder.head(weights, segments)
        grad = self._losses(head, hidden.detach(), None, None)
        if grad is not None:
            torch.autograd.backward(hidden, grad)

    def _execute_full(self) -> None:
        layout = self.run.layout
        assert isinstance(layout, FullLayout)
        differentiates = self._differentiates
        given = self.run.weights()
        weights = {name: given[name].detach().requires_grad_(differentiates) for name in layout.places}
        hidden = self._hidden(weights, Adapters([], trained=True))
        head = self.base.decoder.head(given, [])
        if not differentiates:
            self._losses(head, hidden, None, None)
            return
        sinks = layout.tensors(self.staged[self.run.spec.run_id])
        head_name = "embed" if self.base.architecture.tied else "head.weight"
        grad = self._losses(head, hidden.detach(), sinks[head_name], sinks.get("head.bias"))
        if grad is None:
            return
        names = list(weights)
        for name, part in zip(
            names, torch.autograd.grad(hidden, [weights[n] for n in names], grad, allow_unused=True), strict=True
        ):
            if part is not None:
                sinks[name].add_(part)

    def _losses(
        self, head: Head, hidden: Tensor, weight_grad: Tensor | None, bias_grad: Tensor | None
    ) -> Tensor | None:
        """Evaluates all losses; returns d loss / d hidden when anything is differentiated."""
        batch = self.batch
        if all(p.prepared.position_local for p in batch.parts):
            if not self._differentiates:
                logprobs, grad = score(head, hidden, batch.targets), None
                self._local_gradient(0, logprobs.shape[0], logprobs)
            else:
                logprobs, grad = score_and_differentiate(
                    head, hidden, batch.targets, self._local_gradient, weight_grad, bias_grad
                )
        else:
            logprobs = score(head, hidden, batch.targets)
            slope = self._local_gradient(0, logprobs.shape[0], logprobs)
            for part in batch.parts:
                if not part.prepared.position_local:
                    self._sequence_gradient(part, logprobs, slope)
            grad = (
                differentiate(head, hidden, batch.targets, slope, weight_grad, bias_grad)
                if self._differentiates
                else None
            )
        self._collect(logprobs)
        return grad

    def _local_gradient(self, start: int, stop: int, logprobs: Tensor) -> Tensor:
        """d loss / d logprobs of rows ``start:stop`` for all losses that are sums over positions."""
        slope = torch.zeros_like(logprobs)
        for part in self.batch.parts:
            low, high = max(start, part.start), min(stop, part.stop)
            if low >= high or not part.prepared.position_local:
                continue
            request = part.prepared.request
            inputs = {name: v[low - part.start : high - part.start] for name, v in part.inputs.items()}
            tally = self.tallies[part.prepared.index]
            with torch.enable_grad():
                lp = logprobs[low - start : high - start].detach().requires_grad_(True)
                loss = LOSS_FUNCTIONS[request.loss_fn](lp, inputs, part.prepared.config)
                if not request.forward_only:
                    (slope_rows,) = torch.autograd.grad(loss, lp)
                    slope[low - start : high - start] = slope_rows
                    tally.loss_tokens += int((slope_rows != 0).any(-1).sum())
            tally.loss += float(loss.detach())
            if "logprobs" in inputs:
                counted = inputs["advantages"] != 0
                gap = (inputs["logprobs"] - lp.detach())[counted].double()
                tally.gap += float(gap.sum())
                tally.gap_squared += float(gap.square().sum())
                tally.gap_tokens += int(counted.sum())
        return slope

    def _sequence_gradient(self, part: RequestRows, logprobs: Tensor, slope: Tensor) -> None:
        """d loss / d logprobs of a loss that looks at whole sequences, datum by datum."""
        request, tally, row = part.prepared.request, self.tallies[part.prepared.index], part.start
        for datum in part.data:
            rows, width = len(datum.tokens), datum.targets.shape[1]
            inputs = {n: torch.tensor(v, device=logprobs.device) for n, v in datum.inputs.items()}
            with torch.enable_grad():
                lp = logprobs[row : row + rows, :width].detach().reshape(datum.output_shape).requires_grad_(True)
                if request.graph is not None and request.loss_fn == "custom":
                    outcome = run_graph(request.graph, lp, inputs)
                    loss = outcome.loss
                    for name, value in outcome.metrics.items():
                        tally.custom[name] = tally.custom.get(name, 0.0) + value
                else:
                    loss = LOSS_FUNCTIONS[request.loss_fn](lp, inputs, part.prepared.config)
                if not request.forward_only and loss.requires_grad:
                    (slope_rows,) = torch.autograd.grad(loss, lp, allow_unused=True)
                    if slope_rows is not None:
                        slope[row : row + rows, :width] = slope_rows.reshape(rows, width)
                        tally.loss_tokens += int((slope_rows.reshape(rows, -1) != 0).any(-1).sum())
            tally.loss += float(loss.detach())
            row += rows

    def _collect(self, logprobs: Tensor) -> None:
        values = logprobs.to("cpu", torch.float32).numpy()
        for part in self.batch.parts:
            tally, row = self.tallies[part.prepared.index], part.start
            for datum in part.data:
                rows, width = len(datum.tokens), datum.targets.shape[1]
                shaped = np.ascontiguousarray(values[row : row + rows, :width]).reshape(datum.output_shape)
                tally.outputs.append({"logprobs": shaped})
                tally.tokens += rows
                row += rows
