"""What a tool is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from tinker_cookbook.renderers import Message, ToolSpec


@dataclass(frozen=True)
class ToolInput:
    """Arguments of a call."""

    arguments: dict[str, Any]
    call_id: str | None = None


@dataclass
class ToolResult:
    """Messages for the model; ``should_stop`` ends the episode."""

    messages: list[Message]
    should_stop: bool = False
    metrics: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Tool(Protocol):
    """Something that the model can call."""

    @property
    def name(self) -> str:
        """Name in calls."""
        ...

    @property
    def description(self) -> str:
        """What it does, for the model."""
        ...

    @property
    def parameters_schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        ...

    async def run(self, input: ToolInput) -> ToolResult:
        """Run a call."""
        ...

    def to_spec(self) -> ToolSpec:
        """Declaration for a renderer."""
        ...
