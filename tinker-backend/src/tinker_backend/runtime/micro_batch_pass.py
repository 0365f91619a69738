"""One micro-batch: forward, losses and backward, and what each request collects from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tinker_backend.runtime.attention import PackLayout, packed_attention
from tinker_backend.runtime.datum_pack import MicroBatch, RequestRows
from tinker_backend.runtime.decoder import Adapters
from tinker_backend.runtime.head import Head, differentiate, score, score_and_differentiate
from tinker_backend.runtime.lora import AdapterLayout, AdapterSegment, GradientSink
from tinker_backend.runtime.loss_graph import run_graph
from tinker_backend.runtime.losses import LOSS_FUNCTIONS
from tinker_backend.runtime.roles import Array, LossResult
from tinker_backend.runtime.training_run import FullLayout


@dataclass
class Tally:
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


class MicroBatchPass:
    """Forward, losses and backward of one micro-batch; gradients go to ``staged``, results to ``tallies``."""

    def __init__(
        self, batch: MicroBatch, staged: Mapping[str, Tensor], tallies: Mapping[int, Tally], checkpointing: bool
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
