"""Optimizers: the family is fixed when a model is created, the numbers come with each step."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SerializeAsAny, model_serializer

from .base import Request, Response


class OptimParamsBase(Request):
    """Parameters of one step for a family that has no class here; ``type`` names it."""

    model_config = ConfigDict(extra="allow")

    type: str


class OptimizerConfigBase(Request):
    """Optimizer family of a model; unknown families pass through."""

    model_config = ConfigDict(extra="allow")

    type: str


class AdamParams(Request):
    """One AdamW step.

    ``weight_decay`` is decoupled; ``grad_clip_norm`` > 0 clips the global norm, otherwise clipping is off. There is
    no schedule: the caller passes the rate of each step.
    """

    learning_rate: float = 0.0001
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class DimuonParams(OptimParamsBase):
    """One Dimuon step."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    type: Literal["dimuon"] = "dimuon"
    learning_rate: Annotated[float, Field(ge=0)]
    grad_clip_norm: float = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9


class AdamOptimizerConfig(OptimizerConfigBase):
    model_config = ConfigDict(extra="forbid")

    type: Literal["adamw"] = "adamw"


class DimuonOptimizerConfig(OptimizerConfigBase):
    model_config = ConfigDict(extra="forbid")

    type: Literal["dimuon"] = "dimuon"
    version: Literal[1] = 1


OptimParams = AdamParams | SerializeAsAny[OptimParamsBase]
OptimizerConfig = AdamOptimizerConfig | SerializeAsAny[OptimizerConfigBase]


class OptimStepRequest(Request):
    """Wire form: AdamParams travel as ``adam_params``, every other family as ``optimizer_params``."""

    optim_params: OptimParams
    model_id: str
    seq_id: int | None = None
    type: Literal["optim_step"] = "optim_step"

    @model_serializer(mode="wrap")
    def _wire(self, handler: Any) -> dict[str, Any]:
        body: dict[str, Any] = handler(self)
        params = body.pop("optim_params")
        key = "adam_params" if isinstance(self.optim_params, AdamParams) else "optimizer_params"
        return {**body, key: params}


class OptimStepResponse(Response):
    metrics: dict[str, float] | None = None
