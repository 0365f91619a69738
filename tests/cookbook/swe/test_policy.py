"""The policy as an OpenAI endpoint: shapes, limits, and what is recorded."""

from __future__ import annotations

import asyncio

import pytest

from tinker_cookbook.swe import Deadline, DeadlineExceeded, RequestRefused, RolloutFailed, SettingError, TokenBudget

USER = {"role": "user", "content": "go"}


async def test_an_answer_has_the_shape_that_openai_clients_parse(policy_of, scripted_sampler):
    from openai.types.chat import ChatCompletion

    conversation = policy_of(scripted_sampler(["hello"])).conversation()
    body = await conversation.answer({"messages": [USER], "model": "x"}, Deadline(5, "test"))
    parsed = ChatCompletion.model_validate(body)
    assert parsed.choices[0].message.content == "hello"
    assert parsed.choices[0].finish_reason == "stop"
    turn = conversation.turns[0]
    assert parsed.usage is not None
    assert parsed.usage.total_tokens == len(turn.prompt_tokens) + len(turn.completion_tokens)
    assert len(turn.logprobs) == len(turn.completion_tokens) == 6  # five letters and the end token


async def test_tool_calls_parse_as_openai_tool_calls_and_broken_ones_stay_text(policy_of, scripted_sampler):
    from openai.types.chat import ChatCompletion

    texts = [
        'I look.<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>',
        '<tool_call>{"name": "bash", arguments}</tool_call>',
    ]
    conversation = policy_of(scripted_sampler(texts), max_output=100, context=4100).conversation()
    request = {"messages": [USER], "tools": [{"type": "function", "function": {"name": "bash", "parameters": {}}}]}
    good = ChatCompletion.model_validate(await conversation.answer(request, Deadline(5, "test")))
    assert good.choices[0].message.tool_calls is not None
    assert good.choices[0].message.tool_calls[0].function.name == "bash"
    assert good.choices[0].message.content == "I look."
    assert good.choices[0].finish_reason == "tool_calls"
    bad = ChatCompletion.model_validate(await conversation.answer(request, Deadline(5, "test")))
    assert bad.choices[0].message.tool_calls is None
    assert bad.choices[0].message.content == texts[1]


async def test_a_prompt_over_the_limit_is_refused_as_openai_does_it_and_the_rollout_goes_on(
    policy_of, scripted_sampler
):
    sampler = scripted_sampler(["fine"])
    conversation = policy_of(sampler, max_input=60).conversation()
    with pytest.raises(RequestRefused) as caught:
        await conversation.answer({"messages": [{"role": "user", "content": "y" * 100}]}, Deadline(5, "test"))
    error = caught.value.body()["error"]
    assert (caught.value.status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "maximum context length is 60" in error["message"]
    assert conversation.turns == [] and sampler.prompts == []
    await conversation.answer({"messages": [USER]}, Deadline(5, "test"))
    assert len(conversation.turns) == 1 and len(conversation.refusals) == 1


async def test_the_output_is_limited_by_request_budget_and_context_whichever_is_least(policy_of, scripted_sampler):
    sampler = scripted_sampler(["a", "b"])
    conversation = policy_of(sampler, max_input=100, max_output=50, context=150).conversation()
    await conversation.answer({"messages": [USER], "max_tokens": 7}, Deadline(5, "test"))
    await conversation.answer({"messages": [USER], "max_completion_tokens": 9999}, Deadline(5, "test"))
    assert [options["max_tokens"] for options in sampler.seen] == [7, 50]


async def test_overlapping_calls_are_all_recorded_with_their_own_tokens(policy_of, scripted_sampler):
    sampler = scripted_sampler(lambda prompt: "A" if ord("1") + 10 in prompt else "B", delay=0.05)
    conversation = policy_of(sampler).conversation()
    bodies = [{"messages": [{"role": "user", "content": str(number)}]} for number in (1, 2)]
    answers = await asyncio.gather(*(conversation.answer(body, Deadline(5, "test")) for body in bodies))
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["A", "B"]
    assert sorted(turn.index for turn in conversation.turns) == [0, 1]


async def test_sampling_that_takes_longer_than_the_job_names_the_budget_that_ran_out(policy_of, scripted_sampler):
    conversation = policy_of(scripted_sampler(["late"], delay=5.0)).conversation()
    with pytest.raises(DeadlineExceeded, match="job budget"):
        await conversation.answer({"messages": [USER]}, Deadline(0.05, "job budget"))


async def test_a_sampler_that_fails_fails_the_rollout_with_its_reason(policy_of, scripted_sampler):
    conversation = policy_of(scripted_sampler([""], failure=ConnectionError("backend gone"))).conversation()
    with pytest.raises(RolloutFailed, match="sampling: ConnectionError: backend gone"):
        await conversation.answer({"messages": [USER]}, Deadline(5, "test"))


def test_input_plus_output_above_the_context_is_refused():
    with pytest.raises(SettingError, match="exceed the context of 100"):
        TokenBudget(max_input=80, max_output=40, context=100)
