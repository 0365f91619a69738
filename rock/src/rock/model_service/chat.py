"""The OpenAI side: what a chat completion request must look like, errors, and answers as a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


class BadChatRequest(ValueError):
    """The request body cannot be answered. The message names the field, the value and the fix."""


def parse_request(raw: bytes) -> dict[str, Any]:
    """Reads the body of a chat completion.

    Raises:
        BadChatRequest: not JSON, not an object, or without messages.
    """
    try:
        body = json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError:
        raise BadChatRequest("the body nests too deeply; send a plain chat completion request") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise BadChatRequest(
            f"the body is no valid JSON ({error}); send a chat completion request as UTF-8 JSON"
        ) from None
    if not isinstance(body, dict):
        raise BadChatRequest(f"the body is a JSON {type(body).__name__}; send an object with 'model' and 'messages'")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadChatRequest("field 'messages' is missing, empty or no list; send at least one message")
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadChatRequest(f"field 'messages[{position}]' is no object with a string 'role'")
    return body


def complete_answer(answer: dict[str, Any], request: dict[str, Any], index: int, created: float) -> dict[str, Any]:
    """Checks the puller's answer and fills what clients expect in a chat completion.

    ``created`` is Unix time in seconds. The result depends on the arguments alone: the same answer twice is the same answer.

    Raises:
        BadChatRequest: no 'choices' with messages, and no 'error' with a message.
    """
    error = answer.get("error")
    if error is not None:
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            raise BadChatRequest("field 'error' needs an object with a string 'message'")
        return {"error": error}
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise BadChatRequest(
            "field 'choices' is missing, empty or no list; answer with a chat completion or with 'error'"
        )
    filled = []
    for position, choice in enumerate(choices):
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            raise BadChatRequest(f"field 'choices[{position}].message' is missing or no object")
        message = {"role": "assistant", **choice["message"]}
        message.setdefault("content", None)
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise BadChatRequest(f"field 'choices[{position}].message.tool_calls' is no list of objects")
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        filled.append({"index": position, "finish_reason": finish, "logprobs": None, **choice, "message": message})
    defaults = {
        "id": f"chatcmpl-{index}",
        "object": "chat.completion",
        "created": int(created),
        "model": str(request.get("model") or "local"),
    }
    return {**defaults, **answer, "choices": filled}


def error_body(message: str, status: int, *, kind: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI clients expect it."""
    fallback = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind or fallback, "param": None, "code": code}}


def stream_events(answer: dict[str, Any], *, include_usage: bool) -> Iterator[bytes]:
    """A finished chat completion as server-sent events: role, content, tool calls, finish reason, ``[DONE]``."""
    head = {k: answer[k] for k in ("id", "created", "model") if k in answer} | {"object": "chat.completion.chunk"}

    def event(choices: list[dict[str, Any]], **extra: Any) -> bytes:
        chunk = {**head, "choices": choices, **extra}
        return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

    for choice in answer["choices"]:
        message = choice["message"]
        delta = {k: v for k, v in message.items() if k != "tool_calls"}
        if delta.get("content") is None:
            delta["content"] = ""
        yield event(
            [{"index": choice["index"], "delta": delta, "logprobs": choice.get("logprobs"), "finish_reason": None}]
        )
        for position, call in enumerate(message.get("tool_calls") or []):
            yield event(
                [
                    {
                        "index": choice["index"],
                        "delta": {"tool_calls": [{"index": position, **call}]},
                        "finish_reason": None,
                    }
                ]
            )
        yield event([{"index": choice["index"], "delta": {}, "finish_reason": choice["finish_reason"]}])
    if include_usage:
        yield event([], usage=answer.get("usage") or {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})
    yield b"data: [DONE]\n\n"


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"the number {name} is not allowed in JSON")
