"""asample on the wire: JSON requests, protobuf (SDK 0.25 and later) or JSON (SDK 0.24) results."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ..errors import BadRequest
from ..runtime.roles import SampleRequest, SampleResult, TopK
from . import schema
from .prompts import tokens_from_json
from .tensors import json_numbers, tensor_from_json, tensor_to_json, tensor_to_proto


class SamplingParams(BaseModel):
    """How tokens are drawn. ``stop``: None = the model's end of sequence; ``[]`` = nothing; strings or token ids."""

    model_config = ConfigDict(extra="ignore")

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class AsampleBody(BaseModel):
    """Body of POST asample."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    sampling_session_id: str | None = None
    base_model: str | None = None
    model_path: str | None = None
    seq_id: int | None = Field(None, ge=0, lt=2**63)
    num_samples: int = 1
    prompt: dict[str, Any]
    sampling_params: SamplingParams = SamplingParams()
    prompt_logprobs: bool | None = False
    prompt_logprobs_last_n: int | None = None
    topk_prompt_logprobs: int | None = 0
    topk_sample_logprobs: int | None = 0
    target_prompt_logprobs: dict[str, Any] | None = None
    prompt_alt_tokens_k: int | None = 0
    record_stability_info: bool | None = False
    type: Literal["sample"] = "sample"


def request_from_body(body: AsampleBody, request_id: str, version: str) -> SampleRequest:
    """The SampleRequest of a body. Only the form is checked here. Raises BadRequest."""
    params = body.sampling_params
    stop_ids, stop_strings = _stops(params.stop)
    target = body.target_prompt_logprobs
    return SampleRequest(
        request_id=request_id,
        sampler=version,
        tokens=tokens_from_json(body.prompt, "prompt"),
        num_samples=body.num_samples,
        max_tokens=params.max_tokens,
        seed=params.seed,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        stop_token_ids=stop_ids,
        stop_strings=stop_strings,
        prompt_logprobs=bool(body.prompt_logprobs),
        prompt_logprobs_last_n=body.prompt_logprobs_last_n,
        topk_prompt_logprobs=body.topk_prompt_logprobs or 0,
        topk_sample_logprobs=body.topk_sample_logprobs or 0,
        target_prompt_logprobs=None if target is None else tensor_from_json(target, "target_prompt_logprobs"),
        prompt_alt_tokens_k=body.prompt_alt_tokens_k or 0,
    )


def _stops(stop: str | list[str] | list[int] | None) -> tuple[list[int] | None, list[str]]:
    if stop is None:
        return None, []
    if isinstance(stop, str):
        stop = [stop]
    if all(isinstance(item, int) for item in stop):
        return [int(item) for item in stop], []
    if any(item == "" for item in stop):
        raise BadRequest("sampling_params.stop holds an empty string, which would stop at once; leave it out")
    # With strings the model's own end of sequence still stops: only an explicit list of ids replaces it.
    return None, [str(item) for item in stop]


def result_to_proto(result: SampleResult) -> bytes:
    """A serialized SampleResponse."""
    response = schema.SampleResponse(prompt_cache_hit_tokens=result.prompt_cache_hit_tokens)
    for sequence in result.sequences:
        item = response.sequences.add(
            stop_reason=schema.STOP_REASON_STOP if sequence.stop_reason == "stop" else schema.STOP_REASON_LENGTH,
            tokens=sequence.tokens.astype("<i4").tobytes(),
            logprobs=sequence.logprobs.astype("<f4").tobytes(),
        )
        if sequence.topk is not None:
            _fill_topk(item.topk_sampled_logprobs, sequence.topk)
    if result.prompt_logprobs is not None:
        response.prompt_logprobs = result.prompt_logprobs.astype("<f4").tobytes()
    if result.topk_prompt_logprobs is not None:
        _fill_topk(response.topk_prompt_logprobs, result.topk_prompt_logprobs)
    if result.target_prompt_logprobs is not None:
        tensor_to_proto(result.target_prompt_logprobs, response.target_prompt_logprobs)
    if result.prompt_alt_tokens is not None:
        tensor_to_proto(result.prompt_alt_tokens.token_ids, response.prompt_alt_tokens.tokens)
        tensor_to_proto(result.prompt_alt_tokens.logprobs, response.prompt_alt_tokens.logprobs)
    data: bytes = response.SerializeToString()
    return data


def _fill_topk(target: Any, topk: TopK) -> None:
    target.token_ids = topk.token_ids.astype("<i4").tobytes()
    target.logprobs = topk.logprobs.astype("<f4").tobytes()
    target.length, target.k = topk.token_ids.shape


def result_to_json(result: SampleResult) -> dict[str, Any]:
    """The JSON form of SDK 0.24 and of plain HTTP clients."""
    document: dict[str, Any] = {
        "type": "sample",
        "sequences": [
            {
                "stop_reason": sequence.stop_reason,
                "tokens": sequence.tokens.tolist(),
                "logprobs": sequence.logprobs.tolist(),
                **({} if sequence.topk is None else {"topk_logprobs": _topk_json(sequence.topk)}),
            }
            for sequence in result.sequences
        ],
        "prompt_cache_hit_tokens": result.prompt_cache_hit_tokens,
    }
    if result.prompt_logprobs is not None:
        document["prompt_logprobs"] = json_numbers(result.prompt_logprobs)
    if result.topk_prompt_logprobs is not None:
        document["topk_prompt_logprobs"] = _topk_json(result.topk_prompt_logprobs)
    if result.target_prompt_logprobs is not None:
        document["target_prompt_logprobs"] = tensor_to_json(result.target_prompt_logprobs)
    if result.prompt_alt_tokens is not None:
        document["prompt_alt_tokens"] = {
            "tokens": tensor_to_json(result.prompt_alt_tokens.token_ids),
            "logprobs": tensor_to_json(result.prompt_alt_tokens.logprobs),
        }
    return document


def _topk_json(topk: TopK) -> list[list[tuple[int, float]] | None]:
    """One row a position: [(token id, logprob)], or None where nothing is known."""
    rows: list[list[tuple[int, float]] | None] = []
    for ids, logprobs in zip(topk.token_ids, topk.logprobs, strict=True):
        known = np.flatnonzero(logprobs > -99999.0)
        rows.append([(int(ids[i]), float(logprobs[i])) for i in known] or None)
    return rows
