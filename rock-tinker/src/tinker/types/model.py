"""Models of a session: creation, information, loading."""

from __future__ import annotations

from typing import Any, Literal

from .base import Request, Response
from .optimizer import AdamOptimizerConfig, OptimizerConfig

ModelID = str
RequestID = str


class LoraConfig(Request):
    """LoRA of a new model. Rank 0 asks for training of all weights where the server offers that."""

    rank: int
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class CreateModelRequest(Request):
    session_id: str
    model_seq_id: int
    base_model: str
    user_metadata: dict[str, Any] | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = AdamOptimizerConfig()
    type: Literal["create_model"] = "create_model"


class CreateModelResponse(Response):
    model_id: str
    type: Literal["create_model"] = "create_model"


class GetInfoRequest(Request):
    model_id: str
    type: Literal["get_info"] = "get_info"


class ModelData(Response):
    arch: str | None = None
    model_name: str | None = None
    tokenizer_id: str | None = None


class GetInfoResponse(Response):
    """What a training client knows about its model."""

    type: Literal["get_info"] | None = None
    model_data: ModelData
    model_id: str
    optimizer_config: OptimizerConfig = AdamOptimizerConfig()
    is_lora: bool | None = None
    lora_rank: int | None = None
    model_name: str | None = None


class LoadWeightsRequest(Request):
    """Into an existing model (model_id, seq_id) or as the creation of one (session_id, model_seq_id)."""

    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    path: str
    optimizer: bool
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None
    type: Literal["load_weights"] = "load_weights"


class LoadWeightsResponse(Response):
    path: str | None = None
    model_id: str | None = None
    type: Literal["load_weights"] | None = None


class UnloadModelRequest(Request):
    model_id: str
    type: Literal["unload_model"] = "unload_model"


class UnloadModelResponse(Response):
    model_id: str
    type: Literal["unload_model"] | None = None


class SupportedModel(Response):
    model_name: str | None = None
    max_context_length: int | None = None
    trainable: bool | None = None
    sampleable: bool | None = None


class GetServerCapabilitiesResponse(Response):
    supported_models: list[SupportedModel]


class WeightsInfoResponse(Response):
    """What a checkpoint holds, as far as the creation of a model from it needs to know."""

    base_model: str
    optimizer_config: OptimizerConfig = AdamOptimizerConfig()
    is_lora: bool
    lora_rank: int | None = None
    train_unembed: bool | None = None
    train_mlp: bool | None = None
    train_attn: bool | None = None
