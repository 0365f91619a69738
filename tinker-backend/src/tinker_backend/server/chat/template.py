"""A conversation as the model's prompt, by the model's own chat template.

Templates run in Jinja's sandbox with what Hugging Face templates rely on. A model whose template knows nothing of
tools is told of them in the system message, in the form that most open models were trained on.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from datetime import datetime
from typing import Any

from ...errors import BadRequest, Unavailable
from .conversation import Conversation, Message, Tool
from .tokenizer import ChatTokenizer

_TOOL_INSTRUCTIONS = """You may call functions to help with the user's request. Their signatures are within <tools></tools>:
<tools>
{tools}
</tools>

For each call, answer with a JSON object with the function's name and arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <arguments-object>}}
</tool_call>"""


def render(tokenizer: ChatTokenizer, conversation: Conversation) -> str:
    """The prompt up to where the model's answer starts, ``prefill`` included.

    Raises BadRequest when the template refuses the conversation, Unavailable when the model has no template.
    """
    if tokenizer.template is None:
        raise Unavailable("the model has no chat template; use the completions endpoint")
    messages, tools = list(conversation.messages), list(conversation.visible_tools)
    if not knows_tools(tokenizer.template):
        messages, tools = _without_tool_roles(messages, tools), []
    from jinja2 import TemplateError

    try:
        text: str = _compile(tokenizer.template).render(
            messages=[_to_template(message) for message in messages],
            tools=[tool.to_template() for tool in tools] or None,
            documents=None,
            add_generation_prompt=True,
            **tokenizer.specials,
            **conversation.template_options,
        )
    except (TemplateError, TypeError, ValueError, OverflowError) as error:
        raise BadRequest(f"messages: the model's chat template refuses this conversation: {error}") from error
    return text + conversation.prefill


def knows_tools(template: str) -> bool:
    """Whether the template writes tool definitions itself."""
    return re.search(r"\btools\b", template) is not None


def _to_template(message: Message) -> dict[str, Any]:
    entry: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        entry["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        entry["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        entry["name"] = message.name
    return entry


def _without_tool_roles(messages: list[Message], tools: list[Tool]) -> list[Message]:
    """The same conversation in plain text: definitions in the system message, calls and answers in tags."""
    plain: list[Message] = []
    for message in messages:
        if message.role == "tool":
            answer = f"<tool_response>\n{message.text}\n</tool_response>"
            if plain and plain[-1].role == "user" and plain[-1].text.endswith("</tool_response>"):
                plain[-1] = replace(plain[-1], text=f"{plain[-1].text}\n{answer}")
            else:
                plain.append(Message("user", answer))
        elif message.tool_calls:
            calls = "\n".join(
                "<tool_call>\n"
                + json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
                + "\n</tool_call>"
                for call in message.tool_calls
            )
            plain.append(Message(message.role, f"{message.text}\n{calls}" if message.text else calls))
        else:
            plain.append(message)
    if tools:
        listed = "\n".join(json.dumps(tool.to_template(), ensure_ascii=False) for tool in tools)
        instructions = _TOOL_INSTRUCTIONS.format(tools=listed)
        if plain and plain[0].role == "system":
            plain[0] = replace(plain[0], text=f"{plain[0].text}\n\n{instructions}")
        else:
            plain.insert(0, Message("system", instructions))
    return plain


@functools.lru_cache(maxsize=16)
def _compile(source: str) -> Any:
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise Unavailable("chat templates need the package jinja2: pip install jinja2") from error

    class Generation(Extension):
        """``{% generation %}`` marks what the assistant wrote; here it only has to be accepted."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise Unavailable(f"the model's chat template cannot be read: {error}") from error
