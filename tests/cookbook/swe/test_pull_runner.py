"""The pull runner against a ModelService in memory."""

from __future__ import annotations

import asyncio

import pytest

from tinker_cookbook.swe import Deadline, DeadlineExceeded, RolloutFailed, pull

USER = {"role": "user", "content": "go"}


async def test_calls_are_served_until_the_session_ends(policy_of, scripted_sampler, memory_service):
    contents = []

    async def agent(service):
        messages = [USER]
        for _ in range(3):
            _, body = await service.chat(messages)
            contents.append(body["choices"][0]["message"]["content"])
            messages += [body["choices"][0]["message"], USER]

    conversation = policy_of(scripted_sampler(["one", "two", "three"])).conversation()
    assert await pull(memory_service(agent), conversation, Deadline(10, "test")) == 3
    assert contents == ["one", "two", "three"]
    assert [turn.reused_tokens > 0 for turn in conversation.turns] == [False, True, True]


async def test_two_calls_at_once_do_not_wait_for_each_other(policy_of, scripted_sampler, memory_service):
    arrived = asyncio.Event()

    class Meeting(scripted_sampler):
        async def sample(self, prompt, **options):
            # Each call waits for the other one to be sampled too: one at a time would hang.
            if len(self.prompts) == 1:
                arrived.set()
            completion = await super().sample(prompt, **options)
            await arrived.wait()
            return completion

    async def agent(service):
        await asyncio.gather(service.chat([USER]), service.chat([{"role": "user", "content": "other"}]))

    conversation = policy_of(Meeting(["a", "b"])).conversation()
    assert await pull(memory_service(agent), conversation, Deadline(5, "test")) == 2


async def test_a_refused_call_gets_an_openai_error_and_the_session_goes_on(policy_of, scripted_sampler, memory_service):
    seen = []

    async def agent(service):
        seen.append(await service.chat([{"role": "user", "content": "y" * 5000}]))
        seen.append(await service.chat([USER]))

    await pull(memory_service(agent), policy_of(scripted_sampler(["ok"])).conversation(), Deadline(5, "test"))
    assert [status for status, _ in seen] == [400, 200]
    assert seen[0][1]["error"]["code"] == "context_length_exceeded"


async def test_the_words_of_a_session_end_in_a_prompt_end_nothing(policy_of, scripted_sampler, memory_service):
    async def agent(service):
        await service.chat([{"role": "user", "content": "SESSION_END"}])
        await service.chat([USER])

    assert (
        await pull(memory_service(agent), policy_of(scripted_sampler(["a", "b"])).conversation(), Deadline(5, "t")) == 2
    )


async def test_an_agent_that_ends_before_its_first_call_is_a_failed_rollout(
    policy_of, scripted_sampler, memory_service
):
    async def agent(service):
        return None

    with pytest.raises(RolloutFailed, match="before its first model call"):
        await pull(memory_service(agent), policy_of(scripted_sampler([])).conversation(), Deadline(5, "test"))


async def test_a_channel_that_breaks_for_a_moment_is_tried_again(policy_of, scripted_sampler, memory_service):
    async def agent(service):
        await service.chat([USER])

    service = memory_service(agent)
    service.broken_polls = 1
    assert await pull(service, policy_of(scripted_sampler(["a"])).conversation(), Deadline(10, "test")) == 1


async def test_a_silent_agent_runs_into_the_job_budget(policy_of, scripted_sampler, memory_service):
    async def agent(service):
        await asyncio.sleep(60)

    with pytest.raises(DeadlineExceeded, match="job budget"):
        await pull(memory_service(agent), policy_of(scripted_sampler([])).conversation(), Deadline(0.1, "job budget"))


async def test_a_policy_that_fails_tells_the_agent_and_ends_the_rollout(policy_of, scripted_sampler, memory_service):
    seen = []

    async def agent(service):
        seen.append(await service.chat([USER]))

    sampler = scripted_sampler([""], failure=OSError("no backend"))
    with pytest.raises(RolloutFailed, match="no backend"):
        await pull(memory_service(agent), policy_of(sampler).conversation(), Deadline(5, "test"))
    assert seen[0][0] == 500 and "no backend" in seen[0][1]["error"]["message"]
