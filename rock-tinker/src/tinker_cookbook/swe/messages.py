"""OpenAI chat messages: validation of a request body, and a canonical form in which two histories can be compared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tinker_cookbook.swe.errors import RequestRefused

Message = dict[str, Any]


@dataclass(frozen=True)
class ChatRequest:
    """The fields of a chat completion request that the policy acts on."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    stop: tuple[str, ...]
    model: str

    @property
    def history(self) -> tuple[str, ...]:
        """One comparable string a message."""
        return tuple(canonical(message) for message in self.messages)


def read_request(body: Any, *, temperature: float = 1.0) -> ChatRequest:
    """Reads a request body.

    Args:
        temperature: used when the request names none.

    Raises:
        RequestRefused: status 400; the message names the field, its value and the fix.
    """
    if not isinstance(body, dict):
        raise _bad("body", f"the request body is a {type(body).__name__}; send a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("messages", "messages is missing or empty; send at least one message")
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise _bad("tools", f"tools is a {type(tools).__name__}; send a list of functions")
    if body.get("n") not in (None, 1):
        raise _bad("n", f"n is {body['n']}; this policy answers one choice a call, so leave n out")
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(item, str) for item in stop):
        raise _bad("stop", "stop must be a string or a list of strings")
    # Both names are in use: max_tokens by older clients, max_completion_tokens by newer ones.
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    return ChatRequest(
        messages=tuple(_message(item, position) for position, item in enumerate(messages)),
        tools=tuple(tools),
        max_tokens=_whole(limits[0], "max_tokens", lowest=1) if limits else None,
        temperature=_number(body.get("temperature", temperature), "temperature", 0.0, 2.0),
        top_p=_number(body.get("top_p", 1.0), "top_p", 0.0, 1.0),
        seed=None if body.get("seed") is None else _whole(body["seed"], "seed", lowest=0),
        stop=tuple(stop),
        model=str(body.get("model", "")),
    )


def canonical(message: Message) -> str:
    """One string for all spellings of the same message (parts or text, null or empty content, key order)."""
    calls = [
        {"name": call["function"]["name"], "arguments": _parsed(call["function"].get("arguments"))}
        for call in message.get("tool_calls") or []
    ]
    fields = {"role": message["role"], "content": message.get("content") or "", "tool_calls": calls}
    return json.dumps(fields, sort_keys=True, ensure_ascii=False)


def _message(item: Any, position: int) -> Message:
    where = f"messages[{position}]"
    if not isinstance(item, dict) or not isinstance(item.get("role"), str):
        raise _bad(where, f"{where} has no role; send an object with role and content")
    message: Message = {"role": item["role"], "content": _text(item.get("content"), where)}
    for call in item.get("tool_calls") or []:
        if not isinstance(call, dict) or not isinstance(call.get("function"), dict) or "name" not in call["function"]:
            raise _bad(f"{where}.tool_calls", f"{where}.tool_calls holds no function with a name")
    if item.get("tool_calls"):
        message["tool_calls"] = item["tool_calls"]
    for key in ("tool_call_id", "name"):
        if isinstance(item.get(key), str):
            message[key] = item[key]
    return message


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise _bad(f"{where}.content", f"{where}.content has a part that is not text; send text parts only")
        return "".join(part["text"] for part in content)
    raise _bad(f"{where}.content", f"{where}.content is a {type(content).__name__}; send text")


def _parsed(arguments: Any) -> Any:
    if isinstance(arguments, str):
        try:
            return json.loads(arguments)
        except ValueError:
            return arguments
    return arguments


def _whole(value: Any, name: str, *, lowest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise _bad(name, f"{name} is {value!r}; send a whole number of at least {lowest}")
    return value


def _number(value: Any, name: str, lowest: float, highest: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        raise _bad(name, f"{name} is {value!r}; send a number from {lowest:g} to {highest:g}")
    return float(value)


def _bad(param: str, message: str) -> RequestRefused:
    return RequestRefused(400, message, code="invalid_value", param=param)
