"""How families write tool declarations, calls and results as text."""

from __future__ import annotations

import abc
import json
import re
from typing import Any

from tinker_cookbook.renderers.messages import (
    FunctionBody,
    Message,
    ToolCall,
    ToolSpec,
    UnparsedToolCall,
    call_arguments,
    get_text_content,
)
from tinker_cookbook.renderers.parsing import detect_unterminated_tool_block, read_json_call

Call = ToolCall | UnparsedToolCall


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _functions(tools: list[ToolSpec]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": dict(tool)} for tool in tools]


class ToolFormat(abc.ABC):
    """One way to write tools. ``opening`` and ``closing`` mark a call block in sampled text."""

    opening: str
    closing: str
    # Role under which results appear, and whether neighbouring results share one message.
    result_role: str = "tool"
    joins_results: bool = False

    @abc.abstractmethod
    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        """First messages of a conversation with tools."""

    @abc.abstractmethod
    def calls(self, calls: list[ToolCall], text: str) -> str:
        """Calls after the text of an assistant message."""

    @abc.abstractmethod
    def result(self, message: Message) -> str:
        """Body of a tool message."""

    @abc.abstractmethod
    def read_block(self, body: str, raw: str, index: int) -> list[Call]:
        """Calls in one block."""

    def parse(self, text: str) -> tuple[str, list[Call]]:
        """Sampled text as (text without call blocks, calls)."""
        if self.opening not in text:
            return text, []
        calls: list[Call] = []

        def take(match: re.Match[str]) -> str:
            calls.extend(self.read_block(match.group(1), match.group(0), len(calls)))
            return ""

        block = re.escape(self.opening) + r"(.*?)" + re.escape(self.closing)
        rest = re.sub(block, take, text, flags=re.DOTALL)
        broken = detect_unterminated_tool_block(rest, self.opening, self.closing)
        if broken is not None:
            calls.append(UnparsedToolCall(raw_text=broken, error=f"tool call block is not closed by {self.closing}"))
            rest = rest[: len(rest) - len(broken)]
        return (rest.rstrip("\n") if calls else rest), calls


class JsonTools(ToolFormat):
    """JSON objects in ``<tool_call>`` tags (Hermes, Qwen3)."""

    opening, closing = "<tool_call>", "</tool_call>"
    result_role, joins_results = "user", True

    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        listing = "\n".join(_compact(tool) for tool in _functions(tools))
        text = (
            (f"{system_prompt}\n\n" if system_prompt else "")
            + "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            + f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{listing}\n</tools>"
            + "\n\nFor each function call, return a json object with function name and arguments within "
            + '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
            + "<args-json-object>}\n</tool_call>"
        )
        return [Message(role="system", content=text)]

    def calls(self, calls: list[ToolCall], text: str) -> str:
        blocks = [
            f"<tool_call>\n{_compact({'name': call.function.name, 'arguments': call_arguments(call)})}\n</tool_call>"
            for call in calls
        ]
        return ("\n" if text else "") + "\n".join(blocks)

    def result(self, message: Message) -> str:
        return f"<tool_response>\n{get_text_content(message)}\n</tool_response>"

    def read_block(self, body: str, raw: str, index: int) -> list[Call]:
        return [read_json_call(body, raw)]


class XmlTools(JsonTools):
    """``<function=name><parameter=key>value`` in ``<tool_call>`` tags (Qwen3.5, Nemotron 3)."""

    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        listing = "\n".join(_compact(tool) for tool in _functions(tools))
        text = (
            f"# Tools\n\nYou have access to the following functions:\n\n<tools>\n{listing}\n</tools>\n\n"
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
        return [Message(role="system", content=text + (f"\n\n{system_prompt}" if system_prompt else ""))]

    def calls(self, calls: list[ToolCall], text: str) -> str:
        blocks = []
        for call in calls:
            arguments = call_arguments(call)
            rows = arguments.items() if isinstance(arguments, dict) else [("arguments", arguments)]
            parameters = "".join(
                f"<parameter={key}>\n{value if isinstance(value, str) else _compact(value)}\n</parameter>\n"
                for key, value in rows
            )
            blocks.append(f"<tool_call>\n<function={call.function.name}>\n{parameters}</function>\n</tool_call>")
        return ("\n\n" if text else "") + "\n".join(blocks)

    def read_block(self, body: str, raw: str, index: int) -> list[Call]:
        function = re.search(r"<function=([^>\n]+)>(.*?)</function>", body, flags=re.DOTALL)
        if function is None:
            return [UnparsedToolCall(raw_text=raw, error="no <function=name>...</function> in the tool call")]
        arguments: dict[str, Any] = {}
        for key, value in re.findall(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", function.group(2), re.DOTALL):
            try:
                arguments[key] = json.loads(value)
            except json.JSONDecodeError:
                arguments[key] = value
        return [ToolCall(function=FunctionBody(name=function.group(1).strip(), arguments=_compact(arguments)))]


class DeepSeekTools(ToolFormat):
    """DeepSeek V3.1 markers."""

    opening, closing = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        listing = "".join(
            f"\n\n### {tool['name']}\nDescription: {tool['description']}\n\nParameters: {_compact(tool['parameters'])}"
            for tool in tools
        )
        text = (
            (f"{system_prompt}\n\n" if system_prompt else "")
            + f"## Tools\nYou have access to the following tools:{listing}\n\n"
            + "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
            + "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments"
            + "<｜tool▁call▁end｜>{additional_tool_calls}<｜tool▁calls▁end｜>\n\nWhere:\n"
            + "- `tool_call_name` must be an exact match to one of the available tools\n"
            + "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
            + "- For multiple tool calls, chain them directly without separators or spaces"
        )
        return [Message(role="system", content=text)]

    def calls(self, calls: list[ToolCall], text: str) -> str:
        blocks = "".join(
            f"<｜tool▁call▁begin｜>{call.function.name}<｜tool▁sep｜>{call.function.arguments}<｜tool▁call▁end｜>"
            for call in calls
        )
        return f"{self.opening}{blocks}{self.closing}"

    def result(self, message: Message) -> str:
        return f"<｜tool▁output▁begin｜>{get_text_content(message)}<｜tool▁output▁end｜>"

    def read_block(self, body: str, raw: str, index: int) -> list[Call]:
        pattern = r"<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>"
        return _named_calls(re.findall(pattern, body, flags=re.DOTALL), raw, index)


class KimiTools(ToolFormat):
    """Kimi K2 markers; the id of a call is ``functions.<name>:<number>``."""

    opening, closing = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        declaration = Message(role="tool_declare", content=_compact(_functions(tools)))
        system = system_prompt or "You are Kimi, an AI assistant created by Moonshot AI."
        return [declaration, Message(role="system", content=system)]

    def calls(self, calls: list[ToolCall], text: str) -> str:
        blocks = "".join(
            f"<|tool_call_begin|>{call.id or f'functions.{call.function.name}:{index}'}"
            f"<|tool_call_argument_begin|>{call.function.arguments}<|tool_call_end|>"
            for index, call in enumerate(calls)
        )
        return f"{self.opening}{blocks}{self.closing}"

    def result(self, message: Message) -> str:
        return f"## Return of {message.get('tool_call_id', '')}\n{get_text_content(message)}"

    def read_block(self, body: str, raw: str, index: int) -> list[Call]:
        pattern = r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>"
        return _named_calls(re.findall(pattern, body, flags=re.DOTALL), raw, index)


def _named_calls(found: list[tuple[str, str]], raw: str, index: int) -> list[Call]:
    if not found:
        return [UnparsedToolCall(raw_text=raw, error="no complete call in the tool call block")]
    calls: list[Call] = []
    for label, arguments in found:
        label, arguments = label.strip(), arguments.strip()
        try:
            json.loads(arguments)
        except json.JSONDecodeError as error:
            calls.append(UnparsedToolCall(raw_text=f"{label} {arguments}", error=f"invalid JSON: {error}"))
            continue
        name = label.removeprefix("functions.").split(":")[0]
        calls.append(
            ToolCall(id=label if ":" in label else None, function=FunctionBody(name=name, arguments=arguments))
        )
    return calls
