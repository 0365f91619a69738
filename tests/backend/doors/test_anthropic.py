"""The Anthropic door with the official package, over a socket and the real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic

HELLO: list[Any] = [{"role": "user", "content": "Hello, who are you?"}]
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}
"""Newer versions of the package have no argument for it any more."""
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def client(engine_backend: Any, door_keys: tuple[Path, dict[str, str]]) -> Iterator[Anthropic]:
    with Anthropic(base_url=f"{engine_backend.url}/anthropic/api", api_key=door_keys[1]["alice"], max_retries=0) as one:
        yield one


def test_an_answer_has_text_usage_and_reason(client: Anthropic) -> None:
    answer = client.messages.create(model="tiny", messages=HELLO, max_tokens=12, system="Be brief.")
    assert answer.type == "message" and answer.role == "assistant" and answer.model == "tiny"
    assert answer.content[0].type == "text"
    assert answer.stop_reason in ("max_tokens", "end_turn")
    assert 0 < answer.usage.output_tokens <= 12


def test_tokens_are_counted_as_they_are_billed(client: Anthropic) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "system": "Be brief.", "tools": [TOOL]}
    counted = client.messages.count_tokens(**options).input_tokens
    usage = client.messages.create(**options, max_tokens=1).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert counted > client.messages.count_tokens(model="tiny", messages=HELLO).input_tokens


def test_a_stream_says_the_same_as_a_whole_answer(client: Anthropic) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 40} | GREEDY
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].type == whole.content[0].type == "text"
    assert final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1


def test_a_stop_sequence_ends_the_answer_and_is_named(client: Anthropic) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 60} | GREEDY
    free = client.messages.create(**options).content[0].text  # type: ignore[union-attr]
    stop = next(free[i : i + 2] for i in range(2, len(free)) if free[i : i + 2].isascii() and free[i : i + 2].strip())
    answer = client.messages.create(**options, stop_sequences=["never ever", stop])
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == stop
    assert answer.content[0].text == free[: free.index(stop)]  # type: ignore[union-attr]


def test_a_conversation_with_tools_is_understood(client: Anthropic) -> None:
    history: list[Any] = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    answer = client.messages.create(model="tiny", messages=history, tools=[TOOL], max_tokens=4)  # type: ignore[list-item]
    assert answer.content


def test_a_last_message_of_the_assistant_begins_the_answer(client: Anthropic) -> None:
    prefilled = [*HELLO, {"role": "assistant", "content": "I am"}]
    counted = client.messages.count_tokens(model="tiny", messages=prefilled).input_tokens
    assert counted > client.messages.count_tokens(model="tiny", messages=HELLO).input_tokens
    assert client.messages.create(model="tiny", messages=prefilled, max_tokens=4).content


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "claude"}, "not served"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages.0.content.0: Input tag 'image'",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"extra_body": {"no_such_option": 1}}, "no_such_option"),
        ({"messages": [{"role": "user", "content": "word " * 4000}]}, "512"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_honoured_is_refused_by_name(client: Anthropic, change: dict[str, Any], words: str) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 4} | change
    with pytest.raises((anthropic.BadRequestError, anthropic.NotFoundError)) as refusal:
        client.messages.create(**options)
    body: Any = refusal.value.body
    assert body["type"] == "error" and words in body["error"]["message"]


def test_a_wrong_key_has_the_doors_form_of_error(engine_backend: Any) -> None:
    answer = httpx.post(f"{engine_backend.url}/anthropic/api/v1/messages", headers={"x-api-key": "tml-wrong"}, json={})
    assert answer.status_code == 401
    assert answer.json()["type"] == "error" and answer.json()["error"]["type"] == "authentication_error"
