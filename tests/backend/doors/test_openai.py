"""The OpenAI door with the official package, over a socket and the real engine."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI

from tinker_backend.conformance.client import WireClient
from tinker_backend.server.chat.tokenizer import ChatTokenizer

HELLO: list[Any] = [{"role": "user", "content": "Hello, who are you?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def client(engine_backend: Any, door_keys: tuple[Path, dict[str, str]]) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{engine_backend.url}/oai/api/v1", api_key=door_keys[1]["alice"], max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> ChatTokenizer:
    return ChatTokenizer(tiny_model)


@pytest.fixture(scope="module")
def trained_path(engine_backend: Any, door_keys: tuple[Path, dict[str, str]]) -> str:
    """A sampler checkpoint of alice that answers otherwise than the base model."""
    wire = WireClient(engine_backend.url, door_keys[1]["alice"])
    run = wire.session().run("tiny")
    from tinker_backend.conformance import Suite

    for _ in range(4):
        run.loss([Suite.example(3, 40)])
        run.step(learning_rate=2e-2)
    path = run.save_for_sampler("door")
    wire.close()
    return path


def test_models_are_listed_and_found(client: OpenAI, trained_path: str) -> None:
    assert {model.id for model in client.models.list()} == {"tiny", "Qwen/Tiny"}
    assert client.models.retrieve("Qwen/Tiny").id == "Qwen/Tiny"
    assert client.models.retrieve(trained_path).id == trained_path
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_a_chat_answer_has_text_usage_and_reason(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=12, seed=3)
    assert answer.object == "chat.completion" and answer.model == "tiny"
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("length", "stop")
    assert answer.usage is not None and answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_seed_repeats_an_answer_and_choices_differ(client: OpenAI) -> None:
    def ask(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=12, seed=seed, n=3)
        return [choice.message.content for choice in answer.choices]

    assert ask(5) == ask(5) != ask(6)
    assert len(set(ask(5))) == 3


def test_a_stream_says_the_same_as_a_whole_answer(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 40, "seed": 9, "n": 2}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    texts, reasons = ["", ""], [None, None]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]  # type: ignore[assignment]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_comes_while_it_is_sampled(client: OpenAI) -> None:
    started = time.monotonic()
    times = []
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=400, seed=1, stream=True, extra_body={"stop_token_ids": []}
    )
    for _ in stream:
        times.append(time.monotonic() - started)
    assert len(times) > 20
    assert times[len(times) // 4] < 0.7 * times[-1], "all of it came at the end"


def test_logprobs_have_an_entry_for_every_token(client: OpenAI, tokenizer: ChatTokenizer) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=10,
        seed=4,
        logprobs=True,
        top_logprobs=3,
        extra_body={"return_token_ids": True},
    )
    choice: Any = answer.choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert len(choice.token_ids) == len(choice.logprobs.content) == answer.usage.completion_tokens  # type: ignore[union-attr]
    for token, entry in zip(choice.token_ids, choice.logprobs.content, strict=True):
        assert entry.bytes == list(tokenizer.token_bytes(token))
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        tops = [top.logprob for top in entry.top_logprobs]
        assert tops == sorted(tops, reverse=True) and entry.logprob <= tops[0] + 1e-6


def test_streamed_logprobs_and_tokens_equal_the_whole_ones(client: OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "tiny",
        "messages": HELLO,
        "max_tokens": 16,
        "seed": 4,
        "logprobs": True,
        "extra_body": {"return_token_ids": True},
    }
    whole: Any = client.chat.completions.create(**options)
    logprobs, tokens, prompt = [], [], None
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            logprobs += [entry.logprob for entry in choice.logprobs.content] if choice.logprobs else []
            tokens += getattr(choice, "token_ids", None) or []
            prompt = prompt or getattr(choice, "prompt_token_ids", None)
    assert tokens == whole.choices[0].token_ids and prompt == whole.prompt_token_ids
    assert logprobs == pytest.approx([entry.logprob for entry in whole.choices[0].logprobs.content], abs=0.05)


def test_a_stop_string_ends_the_answer_and_is_not_in_it(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "seed": 11, "max_tokens": 60}
    free = client.chat.completions.create(**options).choices[0].message.content
    assert free is not None
    stop = next(free[i : i + 2] for i in range(4, len(free)) if free[i : i + 2].isascii() and free[i : i + 2].isalpha())
    stopped = client.chat.completions.create(**options, stop=[stop]).choices[0]
    assert stopped.message.content == free[: free.index(stop)] and stopped.finish_reason == "stop"


def test_a_checkpoint_is_a_model(client: OpenAI, trained_path: str) -> None:
    def ask(model: str) -> str | None:
        return (
            client.chat.completions.create(model=model, messages=HELLO, max_tokens=16, temperature=0)
            .choices[0]
            .message.content
        )

    assert ask(trained_path) == ask(f"tiny;{trained_path}") == ask(f"Qwen/Tiny;{trained_path}") != ask("tiny")
    with pytest.raises(openai.NotFoundError):
        ask(trained_path + "x")
    with pytest.raises(openai.BadRequestError, match="semicolon"):
        ask("tiny;other")
    with pytest.raises(openai.NotFoundError):
        ask(f"gpt-5;{trained_path}")


def test_anothers_checkpoint_is_no_model_until_it_is_published(
    engine_backend: Any, door_keys: tuple[Path, dict[str, str]], trained_path: str
) -> None:
    bob = OpenAI(base_url=f"{engine_backend.url}/oai/api/v1", api_key=door_keys[1]["bob"], max_retries=0)
    ask = {"model": trained_path, "messages": HELLO, "max_tokens": 4}
    with pytest.raises(openai.PermissionDeniedError):
        bob.chat.completions.create(**ask)  # type: ignore[call-overload]
    alice = WireClient(engine_backend.url, door_keys[1]["alice"])
    run_id, checkpoint = trained_path.removeprefix("tinker://").split("/", 1)
    path = f"training_runs/{run_id}/checkpoints/{checkpoint}/publish"
    assert alice.request("POST", path).status_code < 300
    assert bob.chat.completions.create(**ask).choices  # type: ignore[call-overload]
    assert alice.request("DELETE", path).status_code < 300
    with pytest.raises(openai.PermissionDeniedError):
        bob.chat.completions.create(**ask)  # type: ignore[call-overload]


def test_tools_are_told_to_the_model_and_forced_calls_come_back(client: OpenAI) -> None:
    plain = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1)
    tools = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1, tools=[WEATHER])  # type: ignore[list-item]
    none = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=1,
        tools=[WEATHER],  # type: ignore[list-item]
        tool_choice="none",
    )
    assert plain.usage and tools.usage and none.usage
    assert tools.usage.prompt_tokens > plain.usage.prompt_tokens + 50
    assert none.usage.prompt_tokens == plain.usage.prompt_tokens
    history = [
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    assert client.chat.completions.create(model="tiny", messages=history, tools=[WEATHER], max_tokens=4).choices  # type: ignore[list-item]


def test_completions_continue_texts_and_tokens(client: OpenAI, tokenizer: ChatTokenizer) -> None:
    text = client.completions.create(model="tiny", prompt="import os", max_tokens=8, seed=2)
    tokens = client.completions.create(model="tiny", prompt=tokenizer.encode("import os"), max_tokens=8, seed=2)
    assert text.choices[0].text == tokens.choices[0].text
    many = client.completions.create(model="tiny", prompt=["import os", "def f"], max_tokens=8, seed=2, n=2)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == text.choices[0].text
    echoed = client.completions.create(model="tiny", prompt="import os", max_tokens=8, seed=2, echo=True)
    assert echoed.choices[0].text == "import os" + text.choices[0].text


def test_completions_stream_what_they_answer(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": ["import os", "def f"], "max_tokens": 12, "seed": 2, "n": 2}
    whole = client.completions.create(**options, logprobs=1)
    texts, logprobs = [""] * 4, [[] for _ in range(4)]  # type: ignore[var-annotated]
    for chunk in client.completions.create(**options, logprobs=1, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            logprobs[choice.index] += (choice.logprobs.token_logprobs or []) if choice.logprobs else []
    assert texts == [choice.text for choice in whole.choices]
    for streamed, choice in zip(logprobs, whole.choices, strict=True):
        assert choice.logprobs is not None
        assert streamed == pytest.approx(choice.logprobs.token_logprobs, abs=0.05)


def test_a_prompt_can_be_scored_without_sampling(
    client: OpenAI, tokenizer: ChatTokenizer, engine_backend: Any, door_keys: tuple[Path, dict[str, str]]
) -> None:
    prompt = "import os\nprint(os.getcwd())"
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=0, echo=True, logprobs=2)
    choice = answer.choices[0]
    assert choice.text == prompt and choice.logprobs is not None
    values = choice.logprobs.token_logprobs
    assert values is not None and values[0] is None
    wire = WireClient(engine_backend.url, door_keys[1]["alice"])
    scored = wire.session().sampler(base_model="tiny").score(tokenizer.encode(prompt))
    wire.close()
    np.testing.assert_allclose(np.array(values[1:], dtype=float), scored[1:], atol=0.02)
    assert answer.usage is not None and answer.usage.completion_tokens == 0
    assert all(top is not None and len(top) <= 2 for top in (choice.logprobs.top_logprobs or [])[1:])
    assert not any(math.isnan(value) for value in values[1:] if value is not None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "gpt-5"}, "not served"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "wizard"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "image_url"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 1000}, "n:"),
        ({"logit_bias": {"5": 3}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"response_format": {"type": "json_object"}}, "json_object"),
        ({"stop": ["x" * 5000]}, "stop"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"top_logprobs": 2}, "logprobs"),
        ({"extra_body": {"no_such_option": 1}}, "no_such_option"),
        ({"messages": [{"role": "user", "content": "word " * 4000}]}, "512"),
        ({"extra_body": {"stop_token_ids": [10**9]}}, "1000000000"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_cannot_be_honoured_is_refused_by_name(
    client: OpenAI, change: dict[str, Any], words: str, stream: bool
) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "stream": stream} | change
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refusal:
        client.chat.completions.create(**options)
    body: Any = refusal.value.body
    assert words in body["message"] and body["type"] in ("invalid_request_error", "not_found_error")


def test_no_key_and_a_wrong_key_have_the_doors_form_of_error(engine_backend: Any) -> None:
    for headers in ({}, {"Authorization": "Bearer tml-wrong"}):
        answer = httpx.get(f"{engine_backend.url}/oai/api/v1/models", headers=headers)
        assert answer.status_code == 401 and answer.json()["error"]["type"] == "authentication_error"


def test_a_client_that_leaves_stops_the_sampling(engine_backend: Any, door_keys: tuple[Path, dict[str, str]]) -> None:
    headers = {"Authorization": f"Bearer {door_keys[1]['alice']}"}

    def running() -> int:
        status = httpx.get(f"{engine_backend.url}/api/v1/status", headers=headers).json()
        return int(status["pending"]["samples"])

    body = {"model": "tiny", "prompt": "x", "max_tokens": 500, "n": 128, "stop_token_ids": [], "temperature": 1.5}
    for stream in (True, False):
        with httpx.Client(timeout=0.5, headers=headers) as http:
            url = f"{engine_backend.url}/oai/api/v1/completions"
            if stream:
                with http.stream("POST", url, json={**body, "stream": True}) as answer:
                    assert answer.status_code == 200, answer.read()
                    lines = answer.iter_lines()
                    assert next(lines).startswith("data:")
                    assert running() == 1
            else:
                with pytest.raises(httpx.ReadTimeout):
                    http.post(url, json=body)
        deadline = time.monotonic() + 5
        while running():
            assert time.monotonic() < deadline, "the sample of a client that left goes on"
            time.sleep(0.05)
