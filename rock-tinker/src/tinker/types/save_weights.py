"""Saving weights: training state, sampler weights, external (downloadable) weights; copies."""

from __future__ import annotations

from typing import Literal

from .._console import checkpoint_url, playground_url
from .base import Request, Response

SamplingClientKind = Literal["snapshot", "inflight"]


class SaveWeightsRequest(Request):
    model_id: str
    path: str | None = None
    seq_id: int | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None
    type: Literal["save_weights"] = "save_weights"


class SaveWeightsResponse(Response):
    path: str
    type: Literal["save_weights"] | None = None

    def get_console_url(self) -> str:
        return checkpoint_url(self.path)


class SaveWeightsForSamplerRequest(Request):
    """Named (``path``) or bound to a sampling session of its own (``sampling_session_seq_id``)."""

    model_id: str
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: SamplingClientKind = "snapshot"
    seq_id: int | None = None
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None
    type: Literal["save_weights_for_sampler"] = "save_weights_for_sampler"


class SaveWeightsForSamplerResponse(Response):
    path: str
    type: Literal["save_weights_for_sampler"] | None = None

    def get_console_url(self) -> str:
        return checkpoint_url(self.path)

    def get_playground_url(self) -> str:
        return playground_url(self.path)


class SaveWeightsForSamplerResponseInternal(Response):
    path: str | None = None
    sampling_session_id: str | None = None
    type: Literal["save_weights_for_sampler"] | None = None


class SaveWeightsExternalRequest(Request):
    model_id: str
    path: str
    seq_id: int | None = None
    ttl_seconds: int | None = None
    age_encryption_recipients: list[str] | None = None
    type: Literal["save_weights_external"] = "save_weights_external"


class SaveWeightsExternalResponse(Response):
    path: str
    type: Literal["save_weights_external"] | None = None


class SaveWeightsExternalResponseInternal(Response):
    path: str | None = None
    size_bytes: int | None = None
    type: Literal["save_weights_external"] | None = None


class CopyWeightsRequest(Request):
    session_id: str | None = None
    model_seq_id: int | None = None
    destination_project_id: str | None = None
    source_path: str
    ttl_seconds: int | None = None
    weights_access_token: str | None = None


class CopyWeightsResponse(Response):
    tinker_path: str
