"""Both doors over a model that can talk."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

pytestmark = pytest.mark.model
NAME = "SmolLM2-135M-Instruct"
QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory, start_backend: Any) -> Iterator[Any]:
    folder = Path(os.environ.get("TINKER_TEST_MODEL") or Path.home() / ".cache/tinker-backend/models" / NAME)
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"no model in {folder}; set TINKER_TEST_MODEL")
    backend = start_backend(
        tmp_path_factory.mktemp("talker"),
        {
            "pretrain": str(folder),
            "model_name": NAME,
            "sequence_length": 1024,
            "actor_train": {"model_args": {"dtype": "float32"}},
        },
        {"runtime": {"command": None}},
    )
    yield backend
    backend.stop()


def test_a_chat_answer_makes_sense_and_ends_by_itself(talker: Any) -> None:
    client = OpenAI(base_url=f"{talker.url}/oai/api/v1", api_key="none")
    answer = client.chat.completions.create(model=NAME, messages=QUESTION, temperature=0, max_tokens=40)
    assert "Paris" in (answer.choices[0].message.content or "") and answer.choices[0].finish_reason == "stop"
    assert "<|im_end|>" not in (answer.choices[0].message.content or "")
    streamed = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(
            model=NAME, messages=QUESTION, temperature=0, max_tokens=40, stream=True
        )
    )
    assert streamed == answer.choices[0].message.content


def test_a_forced_tool_call_is_a_tool_call(talker: Any) -> None:
    client = OpenAI(base_url=f"{talker.url}/oai/api/v1", api_key="none")
    options: dict[str, Any] = {
        "model": NAME,
        "messages": [{"role": "user", "content": "How is the weather in Paris?"}],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "temperature": 0,
        "max_tokens": 64,
    }
    choice = client.chat.completions.create(**options).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    call: Any = choice.message.tool_calls[0]
    assert call.function.name == "get_weather" and isinstance(json.loads(call.function.arguments), dict)
    streamed = [
        part
        for chunk in client.chat.completions.create(**options, stream=True)
        for part in (chunk.choices[0].delta.tool_calls or [])
    ]
    assert [part.function.arguments for part in streamed] == [call.function.arguments]


def test_the_other_door_says_the_same(talker: Any) -> None:
    client = Anthropic(base_url=f"{talker.url}/anthropic/api", api_key="none")
    greedy: dict[str, Any] = {"model": NAME, "max_tokens": 64, "extra_body": {"temperature": 0}}
    answer: Any = client.messages.create(messages=QUESTION, **greedy)
    assert "Paris" in answer.content[0].text and answer.stop_reason == "end_turn"
    tool: Any = {"name": "get_weather", "description": "Get the weather of a city"}
    tool["input_schema"] = TOOL["function"]["parameters"]
    question: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    choice: Any = {"type": "tool", "name": "get_weather"}
    with client.messages.stream(messages=question, tools=[tool], tool_choice=choice, **greedy) as stream:
        final: Any = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    used = [block for block in final.content if block.type == "tool_use"]
    assert used and used[0].name == "get_weather" and isinstance(used[0].input, dict)
