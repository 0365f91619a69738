"""Bodies of the OpenAI door, and what they mean.

Fields that steer a hosted service only (accounting, caching, tiers) are accepted and have no effect. Fields that would
change the answer and that this server cannot honour are refused by name.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ...errors import BadRequest
from .conversation import Conversation, Message, Settings, Tool, ToolCall, ToolChoice

_ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class Body(BaseModel):
    """A body of this door; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Loose(BaseModel):
    """A part of a body whose unknown fields do not matter."""

    model_config = ConfigDict(extra="ignore")


class StreamOptions(Loose):
    """Options of a streamed answer."""

    include_usage: bool = False


class FunctionCallBody(Loose):
    """The function of a tool call, arguments as JSON text."""

    name: str
    arguments: str = "{}"


class ToolCallBody(Loose):
    """A call in an assistant message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCallBody


class MessageBody(Loose):
    """One message."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None


class FunctionBody(Loose):
    """A function definition."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(Loose):
    """A tool; only functions exist."""

    type: Literal["function"]
    function: FunctionBody


class SamplingBody(Body):
    """What both endpoints have in common."""

    model: str
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    n: int | None = Field(None, ge=1, le=128)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    """Also answer with ``prompt_token_ids`` and, for each choice, ``token_ids``."""
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    # No effect here:
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
        stops = [stop] if isinstance(stop, str) else stop or []
        if len(stops) > 64 or any(not text or len(text) > 1024 for text in stops):
            raise ValueError("stop takes up to 64 strings of 1 to 1024 characters")
        return stop

    def settings(self, max_tokens: int | None, top_logprobs: int | None) -> Settings:
        """How to sample. Raises BadRequest for what cannot be honoured."""
        for name in ("presence_penalty", "frequency_penalty", "logit_bias"):
            if getattr(self, name):
                raise BadRequest(f"{name}: this server samples from the model's own distribution; leave it out")
        top_k = -1 if self.top_k in (None, 0) else self.top_k
        return Settings(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=-1 if top_k is None else top_k,
            seed=None if self.seed is None else self.seed % 2**63,
            count=self.n or 1,
            stop=tuple([self.stop] if isinstance(self.stop, str) else self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            top_logprobs=top_logprobs,
        )

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatBody(SamplingBody):
    """``POST chat/completions``."""

    messages: list[MessageBody] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[ToolBody] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool = False
    """The last message, the assistant's, is continued instead of answered."""
    # No effect here:
    reasoning_effort: str | None = None
    verbosity: str | None = None
    modalities: list[str] | None = None

    def to_settings(self) -> Settings:
        """How to sample."""
        wants = self.top_logprobs or 0 if self.logprobs else None
        if self.top_logprobs and not self.logprobs:
            raise BadRequest("top_logprobs: set logprobs to true as well")
        return self.settings(self.max_completion_tokens or self.max_tokens, wants)

    def to_conversation(self) -> Conversation:
        """What to answer."""
        kind = (self.response_format or {}).get("type", "text")
        if kind != "text":
            raise BadRequest(f"response_format: {kind!r} is not supported; ask for the form in the prompt")
        if self.modalities not in (None, ["text"]):
            raise BadRequest(f"modalities: {self.modalities} is not supported; this server writes text")
        messages = [_message(body, position) for position, body in enumerate(self.messages)]
        prefill = ""
        if self.continue_final_message:
            if messages[-1].role != "assistant" or messages[-1].tool_calls:
                raise BadRequest("continue_final_message: the last message must be the assistant's text")
            prefill = messages.pop().text
        tools = tuple(
            Tool(
                entry.function.name,
                entry.function.description or "",
                entry.function.parameters or {"type": "object", "properties": {}},
            )
            for entry in self.tools or []
        )
        return Conversation(
            tuple(messages), tools, _tool_choice(self.tool_choice, tools), prefill, self.chat_template_kwargs or {}
        )


def _message(body: MessageBody, position: int) -> Message:
    where = f"messages[{position}]"
    role = _ROLES.get(body.role)
    if role is None:
        raise BadRequest(f"{where}.role: {body.role!r} is none of {', '.join(_ROLES)}")
    if body.tool_calls and role != "assistant":
        raise BadRequest(f"{where}.tool_calls: only the assistant calls tools")
    calls = tuple(
        ToolCall(call.id, call.function.name, _arguments(call.function.arguments)) for call in body.tool_calls or []
    )
    return Message(role, text_of(body.content, where), calls, body.tool_call_id, body.name)


def text_of(content: str | list[dict[str, Any]] | None, where: str) -> str:
    """The text of a message's content. Raises BadRequest for parts that are no text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts: list[str] = []
    for position, part in enumerate(content):
        kind = part.get("type")
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind not in ("text", "refusal") or not isinstance(text, str):
            raise BadRequest(f"{where}.content[{position}]: {kind!r} is not supported; this server reads text")
        texts.append(text)
    return "".join(texts)


def _arguments(text: str) -> dict[str, Any] | str:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text


def _tool_choice(choice: str | dict[str, Any] | None, tools: tuple[Tool, ...]) -> ToolChoice:
    if choice is None or choice == "auto":
        return ToolChoice()
    if choice == "none":
        return ToolChoice("none")
    name = None
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name") if choice.get("type") == "function" else None
        if not isinstance(name, str):
            raise BadRequest('tool_choice: write {"type": "function", "function": {"name": ...}}')
    elif choice != "required":
        raise BadRequest(f"tool_choice: {choice!r} is none of none, auto, required")
    return require_tool(tools, name)


def require_tool(tools: tuple[Tool, ...], name: str | None) -> ToolChoice:
    """The choice that some tool, or that one, must be called. Raises BadRequest when there is none."""
    names = [tool.name for tool in tools]
    if not names or (name is not None and name not in names):
        raise BadRequest(f"tool_choice: {name or 'required'!r} is not among the tools ({', '.join(names) or 'none'})")
    return ToolChoice("required", name)


class CompletionBody(SamplingBody):
    """``POST completions``."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool = True

    def to_settings(self) -> Settings:
        """How to sample; 16 tokens unless told otherwise, as this endpoint always had it."""
        if self.suffix:
            raise BadRequest("suffix: this server does not fill in the middle; leave it out")
        if self.best_of not in (None, self.n or 1):
            raise BadRequest("best_of: set it to n, or leave it out")
        if self.max_tokens == 0 and not self.echo:
            raise BadRequest("max_tokens: 0 makes sense with echo only")
        return self.settings(16 if self.max_tokens is None else self.max_tokens, self.logprobs)

    def prompts(self) -> list[str | list[int]]:
        """The prompts, texts or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise BadRequest("prompt: it is empty; give a text or token ids")
        if isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [entry for entry in self.prompt if not isinstance(entry, int)]
