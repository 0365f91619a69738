"""Sampling requests and sampling sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .base import Request, Response
from .model_input import ModelInput
from .tensor_data import TensorDataJson

StopReason = Literal["length", "stop"]


class SamplingParams(Response):
    """How to sample. ``stop=None`` stops at the end-of-sequence token; ``stop=[]`` stops at nothing but the limit.

    Unknown keywords are ignored.
    """

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | Sequence[str] | Sequence[int] | None = None
    temperature: float = 1
    top_k: int = -1
    top_p: float = 1


class SampleRequest(Request):
    num_samples: int = 1
    prompt: ModelInput
    sampling_params: SamplingParams
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: TensorDataJson | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool | None = None
    type: Literal["sample"] = "sample"


class CreateSamplingSessionRequest(Request):
    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None
    type: Literal["create_sampling_session"] = "create_sampling_session"


class CreateSamplingSessionResponse(Response):
    type: Literal["create_sampling_session"] = "create_sampling_session"
    sampling_session_id: str


class JoinSamplingSessionRequest(Request):
    sampling_session_id: str
    type: Literal["join_sampling_session"] = "join_sampling_session"


class JoinSamplingSessionResponse(Response):
    type: Literal["join_sampling_session"] = "join_sampling_session"
    client_counter: int


class GetSamplerResponse(Response):
    sampler_id: str
    base_model: str
    model_path: str | None = None
