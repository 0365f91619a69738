"""Tools from annotated Python functions."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

import pydantic

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message, ToolCall, ToolSpec
from tinker_cookbook.tool_use.types import Tool, ToolInput, ToolResult

logger = logging.getLogger(__name__)


def simple_tool_result(
    content: str,
    *,
    call_id: str = "",
    name: str = "",
    should_stop: bool = False,
    metrics: dict[str, float] | None = None,
    metadata: dict[str, Any] | None = None,
) -> ToolResult:
    """A result of one text."""
    message = Message(role="tool", content=content)
    if call_id:
        message["tool_call_id"] = call_id
    if name:
        message["name"] = name
    return ToolResult([message], should_stop, dict(metrics or {}), dict(metadata or {}))


def error_tool_result(
    error_msg: str,
    *,
    call_id: str = "",
    name: str = "",
    error_type: str = "execution_error",
    should_stop: bool = False,
) -> ToolResult:
    """A result that tells the model what went wrong."""
    return simple_tool_result(
        json.dumps({"error": error_msg}),
        call_id=call_id,
        name=name,
        should_stop=should_stop,
        metrics={error_type: 1.0},
        metadata={"error": error_type},
    )


class FunctionTool:
    """A tool made of a function: its name, docstring and annotated parameters are the declaration.

    The function returns a ``ToolResult``, or anything that can be shown as text. Methods work too: access through an
    instance binds it.
    """

    def __init__(self, fn: Callable[..., Any], instance: Any = None) -> None:
        self._function = fn
        self._instance = instance
        self._arguments = _argument_model(fn)

    def __get__(self, instance: Any, owner: type | None = None) -> FunctionTool:
        return self if instance is None else FunctionTool(self._function, instance)

    @property
    def name(self) -> str:
        """Name of the function."""
        return self._function.__name__

    @property
    def description(self) -> str:
        """Docstring of the function."""
        return inspect.getdoc(self._function) or ""

    @property
    def parameters_schema(self) -> dict[str, Any]:
        """JSON schema of the parameters."""
        return self._arguments.model_json_schema()

    def to_spec(self) -> ToolSpec:
        """Declaration for a renderer."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters_schema)

    async def run(self, input: ToolInput) -> ToolResult:
        """Check the arguments and call the function. Errors become results."""
        try:
            arguments = self._arguments(**input.arguments)
        except pydantic.ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            return error_tool_result(
                f"invalid arguments: {problems}",
                call_id=input.call_id or "",
                name=self.name,
                error_type="validation_failed",
            )
        values = {key: getattr(arguments, key) for key in type(arguments).model_fields}
        bound = (self._instance,) if self._instance is not None else ()
        try:
            if inspect.iscoroutinefunction(self._function):
                result = await self._function(*bound, **values)
            else:
                result = await asyncio.to_thread(self._function, *bound, **values)
        except Exception as error:
            logger.warning("tool %s failed: %s", self.name, error)
            return error_tool_result(
                f"{type(error).__name__}: {error}",
                call_id=input.call_id or "",
                name=self.name,
                error_type="execution_failed",
            )
        if not isinstance(result, ToolResult):
            text = result if isinstance(result, str) else json.dumps(result, default=str)
            result = simple_tool_result(text)
        for message in result.messages:
            if input.call_id and not message.get("tool_call_id"):
                message["tool_call_id"] = input.call_id
            if not message.get("name"):
                message["name"] = self.name
        return result

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        bound = (self._instance,) if self._instance is not None else ()
        result = self._function(*bound, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result


def _argument_model(function: Callable[..., Any]) -> type[pydantic.BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if name not in hints:
            raise ConfigurationError(f"tool {function.__name__}: parameter {name!r} needs a type annotation")
        annotation = hints[name]
        # Annotated[str, "what it is"]: the text is the description.
        texts = [item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, str)]
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[name] = (annotation, pydantic.Field(default, description=texts[0] if texts else None))
    return pydantic.create_model(f"{function.__name__}_params", **fields)


def tool(fn: Callable[..., Any]) -> FunctionTool:
    """Decorator: make a tool of a function or method."""
    return FunctionTool(fn)


async def handle_tool_call(tools: Mapping[str, Tool] | Sequence[Tool], tool_call: ToolCall) -> ToolResult:
    """Run a call of the model. Unknown tools and unreadable arguments become error results."""
    by_name = tools if isinstance(tools, Mapping) else {item.name: item for item in tools}
    name, call_id = tool_call.function.name, tool_call.id or ""
    chosen = by_name.get(name)
    if chosen is None:
        known = ", ".join(sorted(by_name))
        return error_tool_result(
            f"unknown tool {name!r}; known tools: {known}", call_id=call_id, name=name, error_type="tool_not_found"
        )
    try:
        arguments = json.loads(tool_call.function.arguments or "{}")
    except json.JSONDecodeError as error:
        return error_tool_result(
            f"arguments are not JSON: {error}", call_id=call_id, name=name, error_type="json_decode_failed"
        )
    if not isinstance(arguments, dict):
        return error_tool_result(
            "arguments must be an object", call_id=call_id, name=name, error_type="validation_failed"
        )
    return await chosen.run(ToolInput(arguments=arguments, call_id=call_id or None))
