"""A conversation as both doors understand it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """A call that the model makes. ``arguments`` is a JSON object, or the text that should have been one."""

    id: str
    name: str
    arguments: dict[str, Any] | str

    @property
    def arguments_text(self) -> str:
        """The arguments as JSON text."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Message:
    """One turn. ``tool_call_id`` and ``name`` belong to the role ``tool``: what it answers."""

    role: Role
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Tool:
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]

    def to_template(self) -> dict[str, Any]:
        """The form that chat templates expect."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


@dataclass(frozen=True)
class ToolChoice:
    """``none``: the tools are hidden; ``auto``: the model decides; ``required``: it must call one, or that ``name``."""

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None


@dataclass(frozen=True)
class Settings:
    """How to sample. ``max_tokens`` None: to the end of the context. ``top_logprobs`` None: no logprobs."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    count: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None


@dataclass(frozen=True)
class Conversation:
    """What to answer. ``prefill`` is how the answer must begin; ``template_options`` go to the template as they are."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    prefill: str = ""
    template_options: dict[str, Any] = field(default_factory=dict)

    @property
    def visible_tools(self) -> tuple[Tool, ...]:
        """The tools that the model is told of."""
        return () if self.tool_choice.mode == "none" else self.tools
