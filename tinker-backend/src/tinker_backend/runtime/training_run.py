"""One training run: trainable values, gradients and Adam moments, each one flat float32 vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tinker_backend.runtime.architecture import Architecture
from tinker_backend.runtime.base_model import BaseModel
from tinker_backend.runtime.lora import Adapter, AdapterLayout
from tinker_backend.runtime.roles import OptimParams, RunSpec


class FullLayout:
    """Where each fused weight of a model is in a flat buffer, for runs that train all weights."""

    def __init__(self, architecture: Architecture) -> None:
        self.places: dict[str, tuple[int, tuple[int, ...]]] = {}
        at = 0
        for name, (shape, _) in architecture.plan().items():
            self.places[name] = (at, shape)
            at += torch.Size(shape).numel()
        self.size = at

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of all fused weights."""
        return {
            name: flat[at : at + torch.Size(shape).numel()].view(shape) for name, (at, shape) in self.places.items()
        }

    def flatten(self, weights: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """A float32 copy of ``weights`` in one buffer."""
        flat = torch.empty(self.size, device=device)
        for name, view in self.tensors(flat).items():
            view.copy_(weights[name])
        return flat


@dataclass
class TrainingRun:
    """State of a run. ``values`` is never written while a published version shares it."""

    spec: RunSpec
    base: BaseModel
    layout: AdapterLayout | FullLayout
    values: Tensor
    gradients: Tensor | None = None
    exp_avg: Tensor | None = None
    exp_avg_sq: Tensor | None = None
    step: int = 0
    shared: bool = False
    _adapter: Adapter | None = field(default=None, repr=False)
    _weights: Mapping[str, Tensor] | None = field(default=None, repr=False)

    @property
    def is_full(self) -> bool:
        """All weights are trained, there is no adapter."""
        return isinstance(self.layout, FullLayout)

    def adapter(self) -> Adapter:
        """The adapter as it is now; the same object until the next step."""
        assert isinstance(self.layout, AdapterLayout)
        if self._adapter is None:
            self._adapter = Adapter(self.layout, self.values, self.base.dtype)
        return self._adapter

    def weights(self) -> Mapping[str, Tensor]:
        """Weights for the forward: those of the base, or the run's own in the dtype of the base."""
        if not isinstance(self.layout, FullLayout):
            return self.base.weights
        if self._weights is None:
            views = self.layout.tensors(self.values)
            narrow = {name: view.to(self.base.dtype) for name, view in views.items()}
            self._weights = self.base.decoder.with_head(narrow)
        return self._weights

    def share(self) -> None:
        """Someone keeps the present values; the next step writes elsewhere."""
        self.shared = True

    def frozen(self) -> TrainingRun:
        """The run with its present weights and nothing else, for who reads them while the run goes on."""
        self.share()
        return TrainingRun(self.spec, self.base, self.layout, self.values, step=self.step)

    def add_gradients(self, staged: Tensor) -> None:
        """Adds what one call collected; takes ownership of ``staged``."""
        self.gradients = staged if self.gradients is None else self.gradients.add_(staged)

    def optim_step(self, params: OptimParams) -> dict[str, float]:
        """One AdamW step (decoupled weight decay) with the accumulated gradients, which it consumes.

        Without gradients nothing changes and the metrics say so.
        """
        gradients = self.gradients
        if gradients is None:
            return {"grad_norm": 0.0, "skipped_no_gradients": 1.0, "step": float(self.step)}
        self.gradients = None
        norm = float(torch.linalg.vector_norm(gradients))
        if params.grad_clip_norm > 0:
            gradients.mul_(min(1.0, params.grad_clip_norm / (norm + 1e-6)))
        if self.shared:
            self.values, self.shared = self.values.clone(), False
        self._adapter, self._weights = None, None
        if self.exp_avg is None or self.exp_avg_sq is None:
            self.exp_avg, self.exp_avg_sq = torch.zeros_like(self.values), torch.zeros_like(self.values)
        self.step += 1
        adamw(self.values, gradients, self.exp_avg, self.exp_avg_sq, self.step, params)
        return {"grad_norm": norm, "learning_rate": params.learning_rate, "step": float(self.step)}


_SMALLEST_EPS = 1e-37
"""Below it ``eps`` may be 0 in float32."""


def adamw(
    values: Tensor, gradients: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: int, params: OptimParams
) -> None:
    """AdamW with decoupled weight decay, in place; ``step`` counts from 1. ``gradients`` is used up as scratch."""
    if params.weight_decay:
        values.mul_(1 - params.learning_rate * params.weight_decay)
    exp_avg.lerp_(gradients, 1 - params.beta1)
    exp_avg_sq.mul_(params.beta2).addcmul_(gradients, gradients, value=1 - params.beta2)
    correction1 = 1 - params.beta1**step
    correction2 = (1 - params.beta2**step) ** 0.5
    denominator = torch.sqrt(exp_avg_sq, out=gradients).div_(correction2).add_(params.eps)
    if params.eps < _SMALLEST_EPS:
        # No gradient so far, or one whose square is 0 in float32: 0 / 0 without this.
        denominator.masked_fill_(denominator == 0, torch.inf)
    values.addcdiv_(exp_avg, denominator, value=-params.learning_rate / correction1)


def new_run(spec: RunSpec, base: BaseModel) -> TrainingRun:
    """A run at its start: an adapter that changes nothing yet, or a float32 copy of all weights (rank 0)."""
    if spec.lora.rank == 0:
        full = FullLayout(base.architecture)
        return TrainingRun(spec, base, full, full.flatten(base.weights, base.device))
    layout = AdapterLayout(base.architecture, spec.lora)
    return TrainingRun(spec, base, layout, layout.initial().to(base.device))
