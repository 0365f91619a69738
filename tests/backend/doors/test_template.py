"""Prompts are made by the model's own template, as the reference implementation renders it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tinker_backend.errors import BadRequest, Unavailable
from tinker_backend.server.chat.conversation import Conversation, Message, Tool, ToolCall, ToolChoice
from tinker_backend.server.chat.template import render
from tinker_backend.server.chat.tokenizer import ChatTokenizer

TOOL_TEMPLATE = """
{%- if tools %}
    {{- bos_token + 'TOOLS' }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'nobody' %}{%- continue %}{%- endif %}
    {{- '[' + message.role + ']' + message.content }}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}{{- '<tool_call>' }}{{- call.function | tojson }}{{- '</tool_call>' }}{%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{%- generation %}{{- '[assistant]' }}{%- endgeneration %}{%- endif %}
"""
TOOL = Tool("ls", "Lists <files> & folders: größer", {"type": "object", "properties": {"path": {"type": "string"}}})
TALK = (
    Message("system", "Be brief."),
    Message("user", "What is in /?"),
    Message("assistant", "", (ToolCall("call_1", "ls", {"path": "/"}),)),
    Message("tool", "etc usr", tool_call_id="call_1"),
    Message("tool", "and more", tool_call_id="call_1"),
)


def _with_template(folder: Path, target: Path, template: str) -> ChatTokenizer:
    shutil.copytree(folder, target)
    (target / "chat_template.jinja").write_text(template)
    return ChatTokenizer(target)


def test_a_prompt_equals_the_reference_rendering(tokenizer_folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = _with_template(tokenizer_folder, tmp_path / "model", TOOL_TEMPLATE)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is in /?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": {"path": "/"}}}
            ],
        },
        {"role": "tool", "content": "etc usr", "tool_call_id": "call_1"},
        {"role": "tool", "content": "and more", "tool_call_id": "call_1"},
    ]
    wanted = reference.apply_chat_template(
        messages, tools=[TOOL.to_template()], add_generation_prompt=True, tokenize=False
    )
    text = render(ours, Conversation(TALK, (TOOL,)))
    assert text == wanted
    assert ours.encode(text) == reference(wanted, add_special_tokens=False)["input_ids"]


def test_a_template_without_tools_gets_them_in_the_system_message(chat_tokenizer: ChatTokenizer) -> None:
    text = render(chat_tokenizer, Conversation(TALK, (TOOL,)))
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou may call functions")
    assert json.dumps(TOOL.to_template(), ensure_ascii=False) in text
    assert '<tool_call>\n{"name": "ls", "arguments": {"path": "/"}}\n</tool_call>' in text
    assert "<|im_start|>user\n<tool_response>\netc usr\n</tool_response>\n<tool_response>\nand more" in text
    assert text.endswith("<|im_start|>assistant\n")


def test_tools_are_hidden_when_the_choice_is_none(chat_tokenizer: ChatTokenizer) -> None:
    assert "functions" not in render(chat_tokenizer, Conversation(TALK[:2], (TOOL,), ToolChoice("none")))


def test_a_prefill_begins_the_answer(chat_tokenizer: ChatTokenizer) -> None:
    assert render(chat_tokenizer, Conversation(TALK[:2], prefill="It is")).endswith("assistant\nIt is")


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
        "{{ messages.append(1) }}",
    ],
    ids=["refusal", "type error", "escape from the sandbox", "endless loop", "change of the messages"],
)
def test_a_template_cannot_do_harm(tokenizer_folder: Path, tmp_path: Path, template: str) -> None:
    tokenizer = _with_template(tokenizer_folder, tmp_path / "model", template)
    with pytest.raises(BadRequest, match="chat template"):
        render(tokenizer, Conversation(TALK[:2]))


def test_a_broken_template_and_a_missing_one_are_the_servers_affair(tokenizer_folder: Path, tmp_path: Path) -> None:
    broken = _with_template(tokenizer_folder, tmp_path / "broken", "{% if %}")
    with pytest.raises(Unavailable, match="cannot be read"):
        render(broken, Conversation(TALK[:2]))
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(tokenizer_folder / "tokenizer.json", bare)
    with pytest.raises(Unavailable, match="no chat template"):
        render(ChatTokenizer(bare), Conversation(TALK[:2]))
    with pytest.raises(Unavailable, match=r"tokenizer\.json"):
        ChatTokenizer(tmp_path / "nowhere")
