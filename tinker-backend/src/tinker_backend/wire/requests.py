"""JSON bodies of the other endpoints (pydantic). Unknown fields are ignored, so that newer clients keep working,
except where ignoring one would change numbers (optimizer parameters)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Body(BaseModel):
    """A request body."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class SdkVersionBody(Body):
    """client/config and client/dynamic_config."""

    sdk_version: str = ""


class CreateSessionBody(Body):
    """create_session."""

    tags: list[str] = Field(default_factory=list)
    user_metadata: dict[str, Any] | None = None
    sdk_version: str = ""
    project_id: str | None = None
    display_name: str | None = None


class SessionBody(Body):
    """session_heartbeat."""

    session_id: str


class FinishReason(Body):
    """How a client's session ended."""

    type: Literal["success", "errored", "interrupted"] = "success"


class FinishBody(Body):
    """sessions/{id}/finish."""

    reason: FinishReason = FinishReason()
    detail: str | None = None


class LoraConfigBody(Body):
    """The adapter that create_model asks for. Rank 0 trains all weights."""

    rank: int = 32
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfigBody(Body):
    """The optimizer family of a run."""

    type: str = "adamw"


class CreateModelBody(Body):
    """create_model."""

    session_id: str
    model_seq_id: int = Field(ge=0, lt=2**63)
    base_model: str
    lora_config: LoraConfigBody | None = None
    user_metadata: dict[str, Any] | None = None
    optimizer_config: OptimizerConfigBody | None = None


class ModelBody(Body):
    """get_info and unload_model."""

    model_id: str


class AdamParamsBody(BaseModel):
    """AdamW of one step. Unknown keys are refused: they would change the numbers."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    type: Literal["adamw", "adam"] = "adamw"
    # The upper bounds keep products of these numbers within float32.
    learning_rate: float = Field(1e-4, ge=0, le=1e30)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-12, ge=0, le=1e30)
    weight_decay: float = Field(0.0, ge=0, le=1e6)
    grad_clip_norm: float = 0.0


class RunBody(Body):
    """A request of a run. ``seq_id`` None: the next one (clients that do not number their requests)."""

    model_id: str
    seq_id: int | None = Field(None, ge=1, lt=2**31)


class OptimStepBody(RunBody):
    """optim_step."""

    adam_params: AdamParamsBody | None = None
    optimizer_params: dict[str, Any] | None = None


class SaveWeightsBody(RunBody):
    """save_weights; ``path`` is the name."""

    path: str | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, Any] | None = None


class SaveForSamplerBody(RunBody):
    """save_weights_for_sampler: named (``path``) or unnamed (``sampling_session_seq_id``)."""

    path: str | None = None
    sampling_session_seq_id: int | None = Field(None, ge=0, lt=2**63)
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: dict[str, Any] | None = None


class SaveExternalBody(RunBody):
    """save_weights_external."""

    path: str
    ttl_seconds: int | None = None
    age_encryption_recipients: list[str] | None = None


class LoadWeightsBody(Body):
    """load_weights: into a run (``model_id``), or as a new run of a session (``session_id``, ``model_seq_id``)."""

    path: str
    optimizer: bool = False
    model_id: str | None = None
    seq_id: int | None = Field(None, ge=1, lt=2**31)
    session_id: str | None = None
    model_seq_id: int | None = Field(None, ge=0, lt=2**63)
    base_model: str | None = None
    user_metadata: dict[str, Any] | None = None
    optimizer_config: OptimizerConfigBody | None = None
    weights_access_token: str | None = None


class LossInputBody(Body):
    """One declared input of a custom loss."""

    name: str = Field(pattern=r"^[a-z_][a-z0-9_]{0,63}$")
    rank: Literal[0, 1, 2]


class LossGraphBody(Body):
    """The traced graph of a custom loss."""

    format: Literal[1]
    nodes: list[dict[str, Any]] = Field(min_length=1, max_length=4096)


class CreateCustomLossBody(Body):
    """create_custom_loss."""

    session_id: str
    custom_loss_seq_id: int = Field(ge=0, lt=2**63)
    name: str = Field(max_length=256)
    inputs: list[LossInputBody] = Field(min_length=1, max_length=17)
    graph: LossGraphBody

    @field_validator("inputs")
    @classmethod
    def _logprobs_first(cls, inputs: list[LossInputBody]) -> list[LossInputBody]:
        if inputs[0].name != "logprobs" or inputs[0].rank == 0:
            raise ValueError("the first input must be logprobs, of rank 1 or 2")
        if len({i.name for i in inputs}) != len(inputs):
            raise ValueError("the names of the inputs must differ")
        return inputs


class CreateSamplingSessionBody(Body):
    """create_sampling_session."""

    session_id: str
    sampling_session_seq_id: int = Field(ge=0, lt=2**63)
    base_model: str | None = None
    model_path: str | None = None


class SamplingSessionBody(Body):
    """join_sampling_session."""

    sampling_session_id: str


class FutureBody(Body):
    """retrieve_future and cancel_future."""

    request_id: str
    allow_metadata_only: bool = False


class FuturesTarget(Body):
    """Whose completions are asked for."""

    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str
    cloned_sampler_id: int = Field(0, ge=0, lt=2**33)


class RetrieveFuturesBody(Body):
    """retrieve_futures. ``timeout`` None: a long poll; 0: at once."""

    target: FuturesTarget
    prev_cursor: int = Field(0, ge=0, lt=2**63)
    timeout: float | None = Field(None, ge=0)
    retrieved_request_ids: list[str] = Field(default_factory=list)


class TinkerPathBody(Body):
    """weights_info."""

    tinker_path: str


class CopyWeightsBody(Body):
    """copy_weights."""

    source_path: str
    destination_project_id: str | None = None
    ttl_seconds: int | None = None


class TtlBody(Body):
    """ttl of a checkpoint; None: never."""

    ttl_seconds: int | None = None


class ProjectBody(Body):
    """project of a session."""

    project_id: str


class SearchOwner(Body):
    """Whose sessions."""

    type: Literal["own", "accessible", "user"] = "own"
    owner_urns: list[str] = Field(default_factory=list)


class SearchStatus(Body):
    """A status to look for."""

    type: Literal["active", "cancelled", "failed", "client_finished"]
    reasons: list[str] | None = None


class SearchCursor(Body):
    """Where the page before ended."""

    last_created_at: str
    last_session_id: str


class SearchBody(Body):
    """sessions/search."""

    session_id: str | None = None
    project_ids: list[str] | None = None
    user_metadata: dict[str, Any] = Field(default_factory=dict)
    display_name: str | None = None
    owner: SearchOwner = SearchOwner()
    statuses: list[SearchStatus] | None = None
    limit: int = Field(50, ge=1, le=200)
    cursor: SearchCursor | None = None
