"""Promises and their retrieval."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from .base import Request, Response
from .forward_backward import ForwardBackwardOutput
from .model import CreateModelResponse, LoadWeightsResponse, UnloadModelResponse
from .optimizer import OptimStepResponse
from .save_weights import (
    SaveWeightsExternalResponseInternal,
    SaveWeightsForSamplerResponseInternal,
    SaveWeightsResponse,
)


class RequestErrorCategory(StrEnum):
    """Whose fault a failed request is."""

    Unknown = "unknown"
    Server = "server"
    User = "user"


class UntypedAPIFuture(Response):
    """Answer to every asynchronous POST: the name under which the result will be found."""

    request_id: str
    model_id: str | None = None
    sample_sequence_ids: list[str] | None = None


class FutureRetrieveRequest(Request):
    request_id: str
    allow_metadata_only: bool = False


class RequestFailedResponse(Response):
    error: str
    category: RequestErrorCategory


class TryAgainResponse(Response):
    type: Literal["try_again"] = "try_again"
    request_id: str
    queue_state: Literal["active", "paused_capacity", "paused_rate_limit"]


FutureRetrieveResponse = (
    TryAgainResponse
    | ForwardBackwardOutput
    | OptimStepResponse
    | SaveWeightsResponse
    | LoadWeightsResponse
    | SaveWeightsForSamplerResponseInternal
    | SaveWeightsExternalResponseInternal
    | CreateModelResponse
    | UnloadModelResponse
    | RequestFailedResponse
)


class SamplingSessionFuturesTarget(Request):
    type: Literal["sampling_session"] = "sampling_session"
    sampling_session_id: str
    cloned_sampler_id: int = 0


class FuturesRetrieveRequest(Request):
    target: SamplingSessionFuturesTarget
    prev_cursor: int = 0
    timeout: float | None = None
    retrieved_request_ids: list[str] = []


class FutureFinished(Response):
    state: Literal["finished"] = "finished"
    request_id: str
    response_payload_uncompressed_size: int | None = None


class FutureFailed(Response):
    state: Literal["failed"] = "failed"
    request_id: str


FutureCompletion = Annotated[FutureFinished | FutureFailed, Field(discriminator="state")]


class FuturesRetrieveResponse(Response):
    completions: list[FutureCompletion]
    cursor: int
