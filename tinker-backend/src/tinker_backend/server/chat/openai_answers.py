"""Answers of the OpenAI door."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from .answer import Finish
from .conversation import ToolCall
from .tokenizer import ChatTokenizer
from .tool_calls import Part

_FINISH: dict[Finish, str] = {
    "stop": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
}
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


@dataclass(frozen=True)
class Scored:
    """A sampled token with its logprob and, most probable first, its alternatives at that place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def error_body(status: int, message: str) -> dict[str, Any]:
    """The door's form of an error."""
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def sse(body: dict[str, Any] | str) -> str:
    """One event of a stream."""
    return f"data: {body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)}\n\n"


def usage(prompt_tokens: int, completion_tokens: int, cached: int = 0) -> dict[str, Any]:
    """Token counts; ``completion_tokens`` has the token that ended an answer."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def tool_call(call: ToolCall, index: int | None = None) -> dict[str, Any]:
    """A call; ``index`` in a stream."""
    body: dict[str, Any] = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments_text},
    }
    return body if index is None else {"index": index, **body}


def chat_logprobs(tokenizer: ChatTokenizer, scored: list[Scored]) -> dict[str, Any]:
    """An entry for every sampled token, in order; the token that ended the answer is one of them."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        piece = tokenizer.token_bytes(token)
        return {"token": piece.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(piece)}

    return {
        "content": [
            {**entry(one.token, one.logprob), "top_logprobs": [entry(*other) for other in one.top]} for one in scored
        ],
        "refusal": None,
    }


def text_logprobs(tokenizer: ChatTokenizer, scored: list[Scored], offset: int = 0) -> dict[str, Any]:
    """The older form: parallel lists. A NaN logprob (the first prompt token's) becomes null."""
    tokens = [tokenizer.token_text(one.token) for one in scored]
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [None if math.isnan(one.logprob) else max(one.logprob, -9999.0) for one in scored],
        "top_logprobs": [
            None
            if math.isnan(one.logprob)
            else {tokenizer.token_text(token): max(logprob, -9999.0) for token, logprob in one.top}
            for one in scored
        ],
        "text_offset": offsets,
    }


def chat_choice(
    index: int, text: str, calls: list[ToolCall], finish: Finish, logprobs: dict[str, Any] | None
) -> dict[str, Any]:
    """A choice of a whole chat answer."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not text else text,
        "refusal": None,
    }
    if calls:
        message["tool_calls"] = [tool_call(call) for call in calls]
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": _FINISH[finish]}


def chat_delta(index: int, part: Part | None, calls_before: int = 0) -> dict[str, Any]:
    """A choice of a streamed chat chunk: the opening one (None), text, or a tool call."""
    delta: dict[str, Any]
    if part is None:
        delta = {"role": "assistant", "content": ""}
    elif isinstance(part, str):
        delta = {"content": part}
    else:
        delta = {"tool_calls": [tool_call(part, calls_before)]}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def chat_end(index: int, finish: Finish) -> dict[str, Any]:
    """The last choice of a streamed chat answer."""
    return {"index": index, "delta": {}, "logprobs": None, "finish_reason": _FINISH[finish]}


def text_choice(index: int, text: str, finish: Finish | None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    """A choice of the completions endpoint, whole or a chunk."""
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": None if finish is None else _FINISH[finish],
    }
