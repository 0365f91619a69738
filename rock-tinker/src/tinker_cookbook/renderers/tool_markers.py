"""Tool formats with markers of their own: DeepSeek V3.1 and V4.1, Kimi, GLM."""

from __future__ import annotations

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
)
from tinker_cookbook.renderers.parsing import UNTERMINATED_TOOL_BLOCK_ERROR, read_json_call, with_reasoning
from tinker_cookbook.renderers.pieces import Markup, Piece
from tinker_cookbook.renderers.tool_formats import Call, ToolFormat, listed, named_arguments, read_arguments
from tinker_cookbook.renderers.tool_schemas import kimi_declaration

KIMI_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."


class DeepSeekTools(ToolFormat):
    """DeepSeek V3.1 markers."""

    opening, closing = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    result_closing = "<｜tool▁output▁end｜>"

    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        listing = "\n".join(
            f"### {tool['name']}\nDescription: {tool['description']}\n\nParameters: {json.dumps(tool['parameters'])}"
            for tool in tools
        )
        text = (
            f"\n\n## Tools\nYou have access to the following tools:\n\n{listing}\n\n"
            "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n\nWhere:\n"
            "- `tool_call_name` must be an exact match to one of the available tools\n"
            "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
            "- For multiple tool calls, chain them directly without separators or spaces"
        )
        return [Message(role="system", content=system_prompt + (text if tools else ""))]

    def calls(self, calls: list[ToolCall], before: str) -> list[Piece]:
        pieces: list[Piece] = [Markup(self.opening)]
        for call in calls:
            pieces += [Markup("<｜tool▁call▁begin｜>"), call.function.name, Markup("<｜tool▁sep｜>")]
            pieces += [call.function.arguments, Markup("<｜tool▁call▁end｜>")]
        return [*pieces, Markup(self.closing)]

    def parse(self, text: str) -> tuple[list[ContentPart] | str, list[Call]]:
        block = re.search(f"{self.opening}(.*?){self.closing}", text, flags=re.DOTALL)
        calls = self.read_block(block.group(1), block.group(0)) if block else []
        rest = text.replace(block.group(0), "", 1) if block and "<｜tool▁call▁begin｜>" in block.group(1) else text
        return with_reasoning(rest), [*calls, *self.unclosed(text)]

    def read_block(self, body: str, raw: str) -> list[Call]:
        pattern = r"(<｜tool▁call▁begin｜>(.*?)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>)"
        return _named_calls(re.findall(pattern, body, flags=re.DOTALL), raw)


_DSML_INTRODUCTION = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> \
BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""


class DsmlTools(ToolFormat):
    """DeepSeek V4.1: XML with ``｜DSML｜`` tags."""

    opening, closing = "<｜DSML｜ calls>", "</｜DSML｜ calls>"
    result_opening, result_closing = "<tool_result>", "</tool_result>"
    orders_results = True
    argument_objects = True
    joins_declaration = True

    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        system = [Message(role="system", content=system_prompt)] if system_prompt else []
        entries = [{"type": "function", "function": dict(tool)} for tool in tools]
        return [*system, *([Message(role="tool_declare", content=json.dumps(entries))] if tools else [])]

    def declaration(self, content: str) -> str:
        functions = [entry.get("function", entry) for entry in json.loads(content)]
        listing = "".join(f"{json.dumps(function, ensure_ascii=False)}\n" for function in functions)
        rule = "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
        return "\n\n" + _DSML_INTRODUCTION + listing + rule

    def calls(self, calls: list[ToolCall], before: str) -> list[Piece]:
        rows = ["\n\n<｜DSML｜ calls>"]
        for call in calls:
            rows.append(f'<｜DSML｜ invoke name="{call.function.name}">')
            parameters = [
                f'<｜DSML｜ parameter name="{name}" string="{str(is_text).lower()}">{text}</｜DSML｜ parameter>'
                for name, text, is_text in named_arguments(call)
            ]
            rows += [*(parameters or [""]), "</｜DSML｜ invoke>"]
        return ["\n".join([*rows, "</｜DSML｜ calls>"])]

    def read_block(self, body: str, raw: str) -> list[Call]:
        invoke = r'<｜DSML｜ invoke name="([^"]+)">(.*?)</｜DSML｜ invoke>'
        if re.sub(invoke, "", body, flags=re.DOTALL).strip() or "invoke" not in body:
            return [UnparsedToolCall(raw_text=raw, error="Invalid DSML: a calls block holds invoke elements only")]
        return [self._read_invoke(found[1], found[2], found[0]) for found in re.finditer(invoke, body, re.DOTALL)]

    def _read_invoke(self, name: str, body: str, raw: str) -> Call:
        pattern = r'<｜DSML｜ parameter name="([^"]+)" string="(true|false)">(.*?)</｜DSML｜ parameter>'
        if re.sub(pattern, "", body, flags=re.DOTALL).strip():
            return UnparsedToolCall(raw_text=raw, error="Invalid DSML: an invoke element holds parameters only")
        arguments: dict[str, Any] = {}
        for key, is_text, value in re.findall(pattern, body, re.DOTALL):
            try:
                arguments[key] = value if is_text == "true" else json.loads(value)
            except json.JSONDecodeError as error:
                return UnparsedToolCall(raw_text=raw, error=f"Invalid JSON: {error}")
        return ToolCall(function=FunctionBody(name=name, arguments=json.dumps(arguments)))

    def parse(self, text: str) -> tuple[list[ContentPart] | str, list[Call]]:
        before, opened, rest = text.partition(self.opening)
        body, closed, after = rest.partition(self.closing)
        calls: list[Call] = []
        if opened and closed:
            calls = self.read_block(body, opened + body + closed)
            calls += [UnparsedToolCall(raw_text=after, error="text after the tool calls")] if after else []
            text = before.removesuffix("\n\n")
        elif opened:
            calls = self.unclosed(text)
        elif "｜DSML｜" in text:
            calls = [UnparsedToolCall(raw_text=text, error="Invalid DSML: marker outside a calls block")]
        return with_reasoning(text), calls


@dataclass(frozen=True)
class KimiTools(ToolFormat):
    """Kimi markers; the id of a call is ``functions.<name>:<number>``. ``typescript``: form of the declarations."""

    typescript: bool = False

    opening, closing = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"

    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        system = Message(role="system", content=system_prompt or KIMI_SYSTEM)
        if not tools:
            return [system]
        if self.typescript:
            text = kimi_declaration(tools)
        else:
            text = f"[{','.join(listed(tools, separators=(',', ':'), sort_keys=True))}]"
        return [Message(role="tool_declare", content=text), system]

    def calls(self, calls: list[ToolCall], before: str) -> list[Piece]:
        pieces: list[Piece] = [Markup(self.opening)]
        for index, call in enumerate(calls):
            pieces += [Markup("<|tool_call_begin|>"), call.id or f"functions.{call.function.name}:{index}"]
            pieces += [Markup("<|tool_call_argument_begin|>"), call.function.arguments, Markup("<|tool_call_end|>")]
        return [*pieces, Markup(self.closing)]

    def result_header(self, message: Message) -> tuple[str, str] | None:
        return message.get("name") or "tool", f"## Return of {message.get('tool_call_id', '')}\n"

    def parse(self, text: str) -> tuple[list[ContentPart] | str, list[Call]]:
        block = re.search(r"<\|tool_calls?_section_begin\|>(.*?)<\|tool_calls?_section_end\|>", text, re.DOTALL)
        calls = self.read_block(block.group(1), block.group(0)) if block else self.unclosed(text)
        rest = text[: block.start()] if block else text
        return with_reasoning(rest), calls

    def read_block(self, body: str, raw: str) -> list[Call]:
        pattern = r"(<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>)"
        return _named_calls(re.findall(pattern, body, flags=re.DOTALL), raw)


class GlmTools(ToolFormat):
    """``<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>`` (GLM)."""

    opening, closing = "<tool_call>", "</tool_call>"
    result_opening, result_closing = "<tool_response>", "</tool_response>"
    result_joiner = ""
    orders_results = True
    argument_objects = True

    def declare(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        listing = "".join(f"{json.dumps(dict(tool), ensure_ascii=False)}\n" for tool in tools)
        text = (
            "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{listing}</tools>\n\n"
            "For each function call, output the function name and arguments within the following XML format:\n"
            "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
            "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>"
        )
        declared = [Message(role="system", content=text)] if tools else []
        return [*declared, *([Message(role="system", content=system_prompt)] if system_prompt else [])]

    def calls(self, calls: list[ToolCall], before: str) -> list[Piece]:
        pieces: list[Piece] = []
        for call in calls:
            pieces += [Markup("<tool_call>"), call.function.name]
            for name, text, _ in named_arguments(call):
                pieces += [Markup("<arg_key>"), name, Markup("</arg_key><arg_value>"), text, Markup("</arg_value>")]
            pieces.append(Markup("</tool_call>"))
        return pieces

    def read_block(self, body: str, raw: str) -> list[Call]:
        if body.lstrip().startswith(("{", "[")):
            return [read_json_call(body, raw)]
        pattern = r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>"
        name = body.split("<arg_key>")[0].strip()
        if not name or "<" in name:
            return [UnparsedToolCall(raw_text=raw, error="no function name in the tool call")]
        if re.sub(pattern, "", body, flags=re.DOTALL).strip() != name:
            return [UnparsedToolCall(raw_text=raw, error="Unexpected trailing content inside tool call")]
        arguments = json.dumps(read_arguments(re.findall(pattern, body, re.DOTALL)))
        return [ToolCall(function=FunctionBody(name=name, arguments=arguments))]


def _named_calls(found: list[tuple[str, str, str]], raw: str) -> list[Call]:
    if not found:
        return [UnparsedToolCall(raw_text=raw, error=f"{UNTERMINATED_TOOL_BLOCK_ERROR}: no complete call in it")]
    calls: list[Call] = []
    for whole, label, arguments in found:
        label, arguments = label.strip(), arguments.strip()
        try:
            json.loads(arguments)
        except json.JSONDecodeError as error:
            calls.append(UnparsedToolCall(raw_text=whole, error=f"Invalid JSON: {error}"))
            continue
        name = label.removeprefix("functions.").split(":")[0]
        calls.append(
            ToolCall(id=label if ":" in label else None, function=FunctionBody(name=name, arguments=arguments))
        )
    return calls
