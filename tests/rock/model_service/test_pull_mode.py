"""The pull mode over real sockets: an OpenAI client on one side, the puller's client on the other."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time

import httpx
import openai
import pytest

from rock.model_service.journal import read_journal
from rock.model_service.messages import ModelRequest, SessionEnd
from rock.sdk.model_service import ModelError, ModelServiceClient, ModelServiceRefused
from rock.sdk.model_service_channel import HttpChannel


def completion(text, **extra):
    return {"choices": [{"message": {"content": text}}], **extra}


def chat(text, **extra):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **extra}


@pytest.fixture
async def puller(running_model_service):
    client = ModelServiceClient(HttpChannel(running_model_service.url))
    yield client
    await client.aclose()


@pytest.fixture
async def agent(running_model_service):
    async with httpx.AsyncClient(base_url=running_model_service.url, timeout=30) as client:
        yield client


def ask(agent, body, **headers):
    named = {"content-type": "application/json"} | {k.replace("_", "-"): v for k, v in headers.items()}
    return asyncio.create_task(agent.post("/v1/chat/completions", content=json.dumps(body), headers=named))


async def test_a_request_is_handed_out_and_its_answer_reaches_the_openai_client(running_model_service, puller):
    async with openai.AsyncOpenAI(base_url=f"{running_model_service.url}/v1", api_key="k", max_retries=0) as client:
        call = asyncio.create_task(
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "2+2?"}])
        )
        request = await puller.next_request(10)
        assert isinstance(request, ModelRequest) and request.index == 1
        assert request.body["messages"] == [{"role": "user", "content": "2+2?"}]
        await puller.respond(1, completion("4", usage={"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}))
        answer = await call
    assert answer.choices[0].message.content == "4" and answer.choices[0].finish_reason == "stop"
    assert answer.model == "m" and answer.usage.total_tokens == 4


async def test_a_streaming_client_gets_events_with_text_tool_calls_and_usage(running_model_service, puller):
    tool = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
    async with openai.AsyncOpenAI(base_url=f"{running_model_service.url}/v1", api_key="k", max_retries=0) as client:
        call = asyncio.create_task(
            client.chat.completions.create(**chat("go"), stream=True, stream_options={"include_usage": True})
        )
        await puller.next_request(10)
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        await puller.respond(1, {"choices": [{"message": {"content": "look", "tool_calls": [tool]}}], "usage": usage})
        chunks = [chunk async for chunk in await call]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    calls = [t for c in chunks if c.choices for t in c.choices[0].delta.tool_calls or []]
    assert text == "look" and calls[0].function.arguments == '{"command": "ls"}'
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
    assert chunks[-1].usage.total_tokens == 4


async def test_two_requests_at_once_are_both_served_and_may_be_answered_in_any_order(agent, puller):
    first = ask(agent, chat("a"))
    assert (await puller.next_request(10)).index == 1
    second = ask(agent, chat("b"))
    assert (await puller.next_request(10)).index == 2
    await puller.respond(2, completion("B"))
    await puller.respond(1, completion("A"))
    assert (await first).json()["choices"][0]["message"]["content"] == "A"
    assert (await second).json()["choices"][0]["message"]["content"] == "B"


async def test_equal_prompts_of_two_living_clients_are_two_requests(agent, puller):
    calls = [ask(agent, chat("same")), ask(agent, chat("same"))]
    assert [(await puller.next_request(10)).index for _ in calls] == [1, 2]
    await puller.respond(1, completion("x"))
    await puller.respond(2, completion("y"))
    assert {(await c).json()["choices"][0]["message"]["content"] for c in calls} == {"x", "y"}


@pytest.mark.parametrize("marker", [{"x_stainless_retry_count": "1"}, {"idempotency_key": "abc"}])
async def test_a_marked_retry_shares_the_parked_request_and_later_its_answer(agent, puller, marker):
    first = {"idempotency_key": "abc"} if "idempotency_key" in marker else {}
    one = ask(agent, chat("q"), **first)
    await puller.next_request(10)
    two = ask(agent, chat("q"), **marker)
    assert await puller.next_request(0.3) is None
    await puller.respond(1, completion("once"))
    late = await ask(agent, chat("q"), **marker)
    assert [r.json()["choices"][0]["message"]["content"] for r in (await one, await two, late)] == ["once"] * 3
    assert (await puller.health())["requests"] == 1


async def test_a_client_that_timed_out_and_asks_again_gets_the_answer_of_the_first_try(running_model_service, puller):
    async with httpx.AsyncClient(base_url=running_model_service.url) as impatient:
        with pytest.raises(httpx.ReadTimeout):
            await impatient.post("/v1/chat/completions", json=chat("slow"), timeout=0.5)
    request = await puller.next_request(1)
    assert request is None  # nobody waits for it any more, so nobody samples for it
    async with httpx.AsyncClient(base_url=running_model_service.url, timeout=20) as client:
        call = ask(client, chat("slow"))
        request = await puller.next_request(10)
        call.cancel()
        await asyncio.sleep(0.2)
        again = ask(client, chat("slow"))
        await asyncio.sleep(0.2)
        await puller.respond(request.index, completion("late but right"))
        assert (await again).json()["choices"][0]["message"]["content"] == "late but right"


async def test_the_puller_learns_that_the_client_of_a_handed_out_request_is_gone(running_model_service, puller):
    async with httpx.AsyncClient(base_url=running_model_service.url) as client:
        doomed = ask(client, chat("doomed"))
        assert (await puller.next_request(10)).index == 1
        doomed.cancel()
        await asyncio.sleep(0.2)
        alive = ask(client, chat("alive"))
        request = await puller.next_request(10)
        assert (request.index, request.abandoned) == (2, (1,))
        await puller.respond(2, completion("fine"))
        await puller.respond(1, completion("nobody hears it"))
        assert (await alive).status_code == 200


async def test_marker_words_of_any_protocol_in_a_prompt_are_plain_text(agent, puller):
    words = 'SESSION_END LLM_REQUEST_END {"type": "session_end"}\nROCK-MODEL-SERVICE {}\n\ud83d lone \x00'
    call = ask(agent, chat(words))
    request = await puller.next_request(10)
    assert request.body["messages"][0]["content"] == words
    await puller.respond(1, completion("SESSION_END"))
    assert (await call).json()["choices"][0]["message"]["content"] == "SESSION_END"
    assert (await puller.health())["session"] == "open"


async def test_a_prompt_of_sixteen_megabytes_and_an_answer_of_four_pass_whole(agent, puller):
    prompt, text = "ä" * 8_000_000, "ß" * 2_000_000
    call = ask(agent, chat(prompt))
    request = await puller.next_request(20)
    assert request.body["messages"][0]["content"] == prompt
    await puller.respond(1, completion(text))
    assert (await call).json()["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"", "JSON"),
        (b"[1]", "object"),
        (b'{"model": "m"}', "messages"),
        (b'{"messages": []}', "messages"),
        (b'{"messages": ["x"]}', "messages[0]"),
        (b'{"messages": [{"role": "user"}], "t": NaN}', "NaN"),
        (b"\xff\xfe{}", "JSON"),
        (b'{"messages":' + b"[" * 100_000, "JSON"),
    ],
)
async def test_a_body_that_is_no_chat_completion_is_refused_with_the_reason(agent, puller, raw, word):
    reply = await agent.post("/v1/chat/completions", content=raw)
    assert reply.status_code == 400 and reply.json()["error"]["type"] == "invalid_request_error"
    assert word in reply.json()["error"]["message"] or "deeply" in reply.json()["error"]["message"]
    assert (await puller.health())["requests"] == 0


@pytest.mark.parametrize(
    "content",
    [r'"\ud800"', r'"\u0000\u202e"', '[{"type":"text","text":"t"},{"type":"image_url"}]', "null", "7"],
    ids=["half-a-surrogate", "control-characters", "parts", "null", "number"],
)
async def test_odd_but_well_formed_content_reaches_the_puller_and_the_journal_as_it_is(
    running_model_service, agent, puller, content
):
    body = f'{{"model":5,"n":-1,"stream":"yes","messages":[{{"role":"user","content":{content}}}]}}'
    call = asyncio.create_task(
        agent.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    )
    request = await puller.next_request(10)
    assert request.body["messages"][0]["content"] == json.loads(content)
    await puller.respond(1, completion("\ud800 back"))
    assert (await call).status_code == 200
    journal = read_journal(running_model_service.data_dir / "trajectory.jsonl")
    assert json.dumps(json.loads(content)) in json.dumps(journal)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"user","content":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"model":"m","seed":' + b"9" * 10_000 + b',"messages":[{"role":"user","content":"x"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"model":"m","top_p":Infinity,"messages":[{"role":"user","content":"x"}]}',
    ],
    ids=["deep", "huge-number", "no-utf8", "infinity"],
)
async def test_a_hostile_body_is_refused_and_the_service_goes_on(agent, puller, body):
    refused = await agent.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert refused.status_code == 400 and refused.json()["error"]["message"]
    assert (await puller.health())["requests"] == 0


async def test_half_a_body_is_no_request(running_model_service, puller):
    body = json.dumps(chat("whole")).encode()
    with socket.create_connection(("127.0.0.1", running_model_service.port)) as link:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        link.sendall(head.encode() + body[: len(body) // 2])
        time.sleep(0.2)
    assert await puller.next_request(0.3) is None
    assert (await puller.health())["requests"] == 0


async def test_an_answer_is_stored_once_and_bad_answers_are_refused(agent, puller):
    call = ask(agent, chat("q"))
    await puller.next_request(10)
    strange = {"choices": [{"message": {"content": None, "tool_calls": ["no object"]}}]}
    for body, status in (({}, 400), ({"choices": [{}]}, 400), ({"error": "no"}, 400), (strange, 400)):
        with pytest.raises(ModelServiceRefused) as refused:
            await puller.respond(1, body)
        assert refused.value.status == status
    with pytest.raises(ModelServiceRefused, match="requests 1 to 1"):
        await puller.respond(7, completion("?"))
    await puller.respond(1, completion("first"))
    await puller.respond(1, completion("first"))
    with pytest.raises(ModelServiceRefused, match="different answer"):
        await puller.respond(1, completion("second"))
    assert (await call).json()["choices"][0]["message"]["content"] == "first"


async def test_an_error_answer_reaches_the_client_with_status_and_code(running_model_service, puller):
    async with openai.AsyncOpenAI(base_url=f"{running_model_service.url}/v1", api_key="k", max_retries=0) as client:
        call = asyncio.create_task(client.chat.completions.create(**chat("too long")))
        await puller.next_request(10)
        await puller.respond(1, ModelError("prompt has 99 tokens, limit 10", 400, code="context_length_exceeded"))
        with pytest.raises(openai.BadRequestError) as failure:
            await call
    assert failure.value.code == "context_length_exceeded" and "99 tokens" in str(failure.value)


async def test_a_request_that_nobody_answers_ends_at_its_deadline(start_model_service):
    service = start_model_service("--request-timeout", "0.5")
    async with httpx.AsyncClient(base_url=service.url, timeout=20) as client:
        reply = await client.post("/v1/chat/completions", json=chat("anyone?"))
    assert reply.status_code == 504 and "--request-timeout" in reply.json()["error"]["message"]


async def test_the_end_of_the_watched_process_ends_the_session_with_its_exit_status(
    running_model_service, agent, puller, tmp_path
):
    status_file = tmp_path / "status"
    process = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.6; echo 7 > {status_file}; exit 7"])
    await puller.watch(process.pid, str(status_file))
    call = ask(agent, chat("unanswered"))
    assert (await puller.next_request(5)).index == 1
    started = time.monotonic()
    end = await puller.next_request(10)
    assert isinstance(end, SessionEnd) and (end.exit_code, end.requests) == (7, 1)
    assert time.monotonic() - started < 5
    assert (await call).status_code == 410
    assert (await ask(agent, chat("too late"))).status_code == 410
    process.wait()
    assert [event["type"] for event in read_journal(running_model_service.data_dir / "trajectory.jsonl")] == [
        "request",
        "session_end",
    ]


async def test_a_process_that_does_not_exist_cannot_be_watched(puller):
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(ModelServiceRefused, match="does not run") as refused:
        await puller.watch(gone.pid)
    assert refused.value.status == 404


async def test_a_session_that_ends_before_its_first_request_says_so(puller):
    await puller.end("harbor failed", 3)
    assert await puller.next_request(5) == SessionEnd("harbor failed", 3, 0)


async def test_only_the_holder_of_the_token_may_pull_and_answer(start_model_service, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    service = start_model_service("--token-file", str(secret))
    stranger = ModelServiceClient(HttpChannel(service.url))
    owner = ModelServiceClient(HttpChannel(service.url, token="s3cret"))
    for attempt in (stranger.next_request(1), stranger.respond(1, completion("me")), stranger.end("now")):
        with pytest.raises(ModelServiceRefused) as refused:
            await attempt
        assert refused.value.status == 403
    assert await owner.next_request(0.1) is None
    await stranger.aclose()
    await owner.aclose()


async def test_the_trajectory_is_on_disk_as_the_session_goes_and_survives_a_kill(running_model_service, agent, puller):
    call = ask(agent, chat("one"))
    await puller.next_request(10)
    await puller.respond(1, completion("two", token_ids=[1, 2]))
    await call
    os.kill(running_model_service.pid, 9)
    events = read_journal(running_model_service.data_dir / "trajectory.jsonl")
    assert [event["type"] for event in events] == ["request", "answer"]
    assert events[1]["body"]["token_ids"] == [1, 2] and "authorization" not in json.dumps(events)


async def test_models_and_unknown_paths_answer_like_openai(start_model_service):
    service = start_model_service("--model", "SmolLM2", "--model", "other")
    async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="k", max_retries=0) as client:
        assert [m.id async for m in client.models.list()] == ["SmolLM2", "other"]
        with pytest.raises(openai.NotFoundError, match="chat/completions"):
            await client.embeddings.create(model="x", input="y")


async def test_a_turn_costs_well_under_a_tenth_of_a_second(agent, puller):
    async def answer():
        for index in range(1, 51):
            await puller.next_request(10)
            await puller.respond(index, completion("ok"))

    side = asyncio.create_task(answer())
    durations = []
    for turn in range(50):
        started = time.perf_counter()
        await agent.post("/v1/chat/completions", json=chat(f"turn {turn}"))
        durations.append(time.perf_counter() - started)
    await side
    durations.sort()
    print(f"turn overhead p50 {durations[25] * 1000:.1f} ms, p99 {durations[-1] * 1000:.1f} ms", file=sys.stderr)
    assert durations[25] < 0.1
