"""Bodies of the Anthropic door, and what they mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...errors import BadRequest
from .conversation import Conversation, Message, Settings, Tool, ToolCall, ToolChoice
from .openai_requests import require_tool


class Loose(BaseModel):
    """A part whose unknown fields (cache marks, citations) do not matter."""

    model_config = ConfigDict(extra="ignore")


class TextBlock(Loose):
    """Text."""

    type: Literal["text"]
    text: str


class ToolUseBlock(Loose):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any] = Field(default_factory=dict)


class ToolResultBlock(Loose):
    """What a call gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


class ThinkingBlock(Loose):
    """Earlier thinking; it is not shown to the model again."""

    type: Literal["thinking", "redacted_thinking"]


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")]


class MessageBody(Loose):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolBody(Loose):
    """A tool with a schema."""

    name: str = Field(min_length=1)
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoiceBody(Loose):
    """Which tool, if any."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class CountBody(BaseModel):
    """``POST messages/count_tokens``: what makes the prompt."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str
    messages: list[MessageBody] = Field(min_length=1)
    system: str | list[TextBlock] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: ToolChoiceBody | None = None
    # No effect here:
    thinking: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None

    def to_conversation(self) -> Conversation:
        """What to answer. A last message of the assistant is how the answer begins."""
        messages: list[Message] = []
        if self.system:
            text = self.system if isinstance(self.system, str) else "\n\n".join(block.text for block in self.system)
            messages.append(Message("system", text))
        for position, body in enumerate(self.messages):
            messages += _messages(body, f"messages[{position}]")
        prefill = ""
        if messages and messages[-1].role == "assistant" and not messages[-1].tool_calls:
            prefill = messages.pop().text
        if not messages:
            raise BadRequest("messages: there is nothing to answer; start with a message of the user")
        tools = tuple(_tool(body, position) for position, body in enumerate(self.tools or []))
        return Conversation(tuple(messages), tools, self._choice(tools), prefill)

    def _choice(self, tools: tuple[Tool, ...]) -> ToolChoice:
        choice = self.tool_choice
        if choice is None or choice.type == "auto":
            return ToolChoice()
        if choice.type == "none":
            return ToolChoice("none")
        if choice.type == "tool" and choice.name is None:
            raise BadRequest("tool_choice.name: name the tool")
        return require_tool(tools, choice.name if choice.type == "tool" else None)


class MessagesBody(CountBody):
    """``POST messages``."""

    max_tokens: int = Field(ge=1)
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    stop_sequences: list[Annotated[str, Field(min_length=1, max_length=1024)]] | None = Field(None, max_length=64)
    stream: bool | None = None
    # No effect here:
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None

    def to_settings(self) -> Settings:
        """How to sample."""
        return Settings(
            max_tokens=self.max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or -1,
            stop=tuple(self.stop_sequences or ()),
        )


def _messages(body: MessageBody, where: str) -> list[Message]:
    """One body as turns: tool results become turns of their own, in the place where they stand."""
    if isinstance(body.content, str):
        return [Message(body.role, body.content)]
    turns: list[Message] = []
    texts: list[str] = []
    calls: list[ToolCall] = []
    for position, block in enumerate(body.content):
        at = f"{where}.content[{position}]"
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ToolUseBlock):
            if body.role != "assistant":
                raise BadRequest(f"{at}: only the assistant uses tools")
            calls.append(ToolCall(block.id, block.name, block.input))
        elif isinstance(block, ToolResultBlock):
            if body.role != "user":
                raise BadRequest(f"{at}: a tool_result belongs to a message of the user")
            text = _result_text(block, at)
            turns.append(Message("tool", text, tool_call_id=block.tool_use_id))
    if texts or calls or not turns:
        turns.append(Message(body.role, "".join(texts), tuple(calls)))
    return turns


def _result_text(block: ToolResultBlock, where: str) -> str:
    if block.content is None or isinstance(block.content, str):
        text = block.content or ""
    else:
        for part in block.content:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise BadRequest(f"{where}.content: {part.get('type')!r} is not supported; this server reads text")
        text = "".join(part["text"] for part in block.content)
    return f"Error: {text}" if block.is_error else text


def _tool(body: ToolBody, position: int) -> Tool:
    if body.type not in (None, "custom") or body.input_schema is None:
        raise BadRequest(f"tools[{position}]: {body.type!r} runs at a hosted service only; give an input_schema")
    return Tool(body.name, body.description or "", body.input_schema)
