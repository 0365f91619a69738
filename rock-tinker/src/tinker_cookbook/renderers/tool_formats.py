"""How families write tool declarations, calls and results as text: JSON and XML in ``<tool_call>`` tags."""

from __future__ import annotations

import abc
import json
import re
from dataclasses import dataclass
from typing import Any

from tinker_cookbook.renderers.messages import (
    ContentPart,
    FunctionBody,
    Message,
    ToolCall,
    ToolSpec,
    UnparsedToolCall,
    call_arguments,
)
from tinker_cookbook.renderers.parsing import detect_unterminated_tool_block, read_blocks, read_json_call
from tinker_cookbook.renderers.pieces import Markup, Piece

Call = ToolCall | UnparsedToolCall


class ToolFormat(abc.ABC):
    """One way to write tools. ``opening`` and ``closing`` mark a call block in sampled text.

    Results appear under ``result_role`` between ``result_opening`` and ``result_closing``; ``result_joiner`` stands
    between neighbouring ones that share a message (None: each has its own). ``orders_results``: in the order of the
    calls. ``argument_objects``: chat templates of the family want arguments as objects. ``joins_declaration``: declared tools become part of the system message.
    """

    opening: str
    closing: str
    result_role: str = "tool"
    result_opening: str = ""
    result_closing: str = ""
    result_joiner: str | None = None
    orders_results: bool = False
    argument_objects: bool = False
    joins_declaration: bool = False

    @abc.abstractmethod
    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        """First messages of a conversation with tools."""

    @abc.abstractmethod
    def calls(self, calls: list[ToolCall], before: str) -> list[Piece]:
        """Calls after what an assistant message already holds."""

    @abc.abstractmethod
    def read_block(self, body: str, raw: str) -> list[Call]:
        """Calls in one block."""

    def result_header(self, message: Message) -> tuple[str, str] | None:
        """Role in the header of a result, and text after that header; None: ``result_role`` and nothing."""
        return None

    def declaration(self, content: str) -> str:
        """Text in the system message for the content of a ``tool_declare`` message."""
        return content

    def parse(self, text: str) -> tuple[list[ContentPart] | str, list[Call]]:
        """Sampled text as (parts in order, calls); text stays text where neither reasoning nor calls are in it."""
        found = read_blocks(text, self.opening, self.closing, self.read_block)
        if found is None:
            return text, []
        parts, calls = found
        return parts, [*calls, *self.unclosed(text)]

    def unclosed(self, text: str) -> list[Call]:
        """A block of calls at the end of a text that was never closed."""
        broken = detect_unterminated_tool_block(text, self.opening, self.closing)
        return [] if broken is None else [broken]


def listed(tools: list[ToolSpec], **options: Any) -> list[str]:
    """Declarations of tools, each as JSON text of a ``function`` entry."""
    return [json.dumps({"type": "function", "function": dict(tool)}, **options) for tool in tools]


def named_arguments(call: ToolCall) -> list[tuple[str, str, bool]]:
    """Arguments of a call as (name, text, whether it is a string); arguments that are no object have one name."""
    arguments = call_arguments(call)
    if not isinstance(arguments, dict):
        return [("arguments", call.function.arguments, True)]
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), isinstance(value, str))
        for name, value in arguments.items()
    ]


def read_arguments(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Named texts as arguments: JSON where they are JSON, else text."""
    arguments: dict[str, Any] = {}
    for name, value in pairs:
        try:
            arguments[name] = json.loads(value)
        except json.JSONDecodeError:
            arguments[name] = value
    return arguments


@dataclass(frozen=True)
class JsonTools(ToolFormat):
    """JSON objects in ``<tool_call>`` tags (Hermes, Qwen3). ``always_breaks``: a newline stands before every call."""

    always_breaks: bool = False

    opening, closing = "<tool_call>", "</tool_call>"
    result_role = "user"
    result_opening, result_closing = "<tool_response>\n", "\n</tool_response>"

    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        text = f"{system_prompt}\n\n" if system_prompt else ""
        if tools:
            listing = "\n".join(listed(tools))
            text += (
                "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{listing}\n"
                "</tools>\n\nFor each function call, return a json object with function name and arguments within "
                '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
                "<args-json-object>}\n</tool_call>"
            )
        return [Message(role="system", content=text)]

    def calls(self, calls: list[ToolCall], before: str) -> list[Piece]:
        pieces: list[Piece] = ["\n"] if before or self.always_breaks else []
        for index, call in enumerate(calls):
            body = json.dumps({"name": call.function.name, "arguments": call_arguments(call)})
            pieces += ["\n" if index else "", Markup("<tool_call>"), f"\n{body}\n", Markup("</tool_call>")]
        return pieces

    def read_block(self, body: str, raw: str) -> list[Call]:
        return [read_json_call(body, raw)]


_XML_RULES = (
    "</tools>\n\n"
    "If you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\n"
    "multiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested "
    "within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, "
    "but NOT after\n- If there is no function call available, answer the question like normal with your current "
    "knowledge and do not tell the user about function calls\n</IMPORTANT>"
)
_XML_INTRODUCTION = "# Tools\n\nYou have access to the following functions:\n\n<tools>\n"


class XmlTools(ToolFormat):
    """``<function=name><parameter=key>value`` in ``<tool_call>`` tags (Qwen3.5)."""

    opening, closing = "<tool_call>", "</tool_call>"
    result_role = "user"
    result_opening, result_closing = "<tool_response>\n", "\n</tool_response>"
    result_joiner = "\n"
    argument_objects = True

    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        if not tools:
            return [Message(role="system", content=system_prompt)]
        text = _XML_INTRODUCTION + "".join(f"{json.dumps(dict(tool))}\n" for tool in tools) + _XML_RULES
        return [Message(role="system", content=text + (f"\n\n{system_prompt}" if system_prompt else ""))]

    def calls(self, calls: list[ToolCall], before: str) -> list[Piece]:
        pieces: list[Piece] = ["\n\n"] if before and not before.endswith("\n\n") else []
        for index, call in enumerate(calls):
            pieces += ["\n" if index else "", *_xml_call(call)]
        return pieces

    def read_block(self, body: str, raw: str) -> list[Call]:
        function = re.search(r"<function=([^>\n]+)>(.*?)</function>", body, flags=re.DOTALL)
        if function is None:
            return [read_json_call(body, raw)]
        pattern = r"<parameter=([^>\n]+)>(.*?)</parameter>"
        if re.sub(pattern, "", function.group(2), flags=re.DOTALL).strip():
            return [UnparsedToolCall(raw_text=raw, error="Unexpected trailing content inside <function> block")]
        pairs = re.findall(pattern, function.group(2), re.DOTALL)
        arguments = json.dumps(read_arguments([(name, value.strip()) for name, value in pairs]))
        return [ToolCall(function=FunctionBody(name=function.group(1).strip(), arguments=arguments))]


def _xml_call(call: ToolCall) -> list[Piece]:
    parameters = "".join(f"<parameter={name}>\n{text}\n</parameter>\n" for name, text, _ in named_arguments(call))
    body = f"\n<function={call.function.name}>\n{parameters}</function>\n"
    return [Markup("<tool_call>"), body, Markup("</tool_call>")]


class NemotronTools(XmlTools):
    """Calls as in Qwen3.5, each on lines of its own; declarations are XML too (Nemotron 3)."""

    result_closing = "\n</tool_response>\n"
    result_joiner = ""

    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        if not tools:
            return [Message(role="system", content=system_prompt)]
        text = _XML_INTRODUCTION + "".join(map(_xml_declaration, tools)) + _XML_RULES
        return [Message(role="system", content=(f"{system_prompt}\n\n" if system_prompt else "") + text)]

    def calls(self, calls: list[ToolCall], before: str) -> list[Piece]:
        pieces: list[Piece] = [] if before.endswith("\n") else ["\n"]
        for call in calls:
            pieces += [*_xml_call(call), "\n"]
        return pieces


def _xml_declaration(tool: ToolSpec) -> str:
    schema = tool["parameters"]
    rows = ["<function>", f"<name>{tool['name']}</name>"]
    if tool["description"]:
        rows.append(f"<description>{tool['description'].strip()}</description>")
    rows.append("<parameters>")
    for name, field in schema.get("properties", {}).items():
        rows += ["<parameter>", f"<name>{name}</name>"]
        rows += _xml_fields(field, ("type", "description", "enum"))
        rows += _xml_fields(field, tuple(key for key in field if key not in ("type", "description", "enum")))
        rows.append("</parameter>")
    rows += _xml_fields(schema, ("required",))
    return "\n".join([*rows, "</parameters>", "</function>", ""])


def _xml_fields(schema: dict[str, Any], keys: tuple[str, ...]) -> list[str]:
    shown = ((key, schema[key]) for key in keys if key in schema)
    return [f"<{key}>{value if isinstance(value, str) else json.dumps(value)}</{key}>" for key, value in shown]
