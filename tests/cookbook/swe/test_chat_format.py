"""Prompts re-use the exact tokens of earlier turns."""

from __future__ import annotations

import pytest

from tinker_cookbook.swe import ChatFormat, Deadline, RequestRefused, SettingError
from tinker_cookbook.swe.messages import canonical, read_request

USER = {"role": "user", "content": "go"}


async def _turns(policy_of, scripted, exchanges):
    """Plays a conversation; each item adds messages after the earlier answer. Returns the conversation."""
    policy = policy_of(scripted)
    conversation = policy.conversation()
    messages = []
    for added, more in exchanges:
        messages = [*messages, *added]
        body = await conversation.answer({"messages": messages, **more}, Deadline(10, "test"))
        messages = [*messages, body["choices"][0]["message"]]
    return conversation


async def test_the_second_prompt_starts_with_the_first_prompt_and_its_sampled_tokens(
    policy_of, scripted_sampler, char_tokenizer
):
    # "ab" was sampled as two tokens; encoding the text again would give one.
    conversation = await _turns(
        policy_of, scripted_sampler(["xaby", "done"]), [([USER], {}), ([{"role": "user", "content": "ok"}], {})]
    )
    first, second = conversation.turns
    kept = first.prompt_tokens + first.completion_tokens
    assert second.prompt_tokens[: len(kept)] == kept
    assert second.reused_tokens == len(kept)
    assert char_tokenizer().decode(second.prompt_tokens) == second.prompt_text  # nothing is lost or doubled in between


async def test_an_answer_cut_at_its_limit_is_closed_by_the_template(policy_of, scripted_sampler, char_tokenizer):
    conversation = await _turns(
        policy_of,
        scripted_sampler(["x" * 60, "done"]),
        [([USER], {"max_tokens": 5}), ([{"role": "user", "content": "ok"}], {})],
    )
    first, second = conversation.turns
    assert first.finish_reason == "length" and first.completion_tokens[-1] != 0
    assert second.prompt_tokens[second.reused_tokens] == 0
    assert char_tokenizer().decode(second.prompt_tokens) == second.prompt_text


async def test_a_tool_call_keeps_the_tokens_that_were_sampled_although_its_json_comes_back_with_other_spaces(
    policy_of, scripted_sampler
):
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
    sampled = '<tool_call>{"name":"bash","arguments":{"command":"ls"}}</tool_call>'
    conversation = await _turns(
        lambda s: policy_of(s, max_output=200, context=4200),
        scripted_sampler([sampled, "done"]),
        [([USER], {"tools": tools}), ([{"role": "tool", "content": "f", "tool_call_id": "1"}], {"tools": tools})],
    )
    first, second = conversation.turns
    assert first.finish_reason == "tool_calls"
    assert first.answer["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    kept = first.prompt_tokens + first.completion_tokens
    assert second.prompt_tokens[: len(kept)] == kept


async def test_a_rewritten_history_is_encoded_afresh(policy_of, scripted_sampler):
    policy = policy_of(scripted_sampler(["one", "two"]))
    conversation = policy.conversation()
    deadline = Deadline(10, "test")
    body = await conversation.answer({"messages": [USER]}, deadline)
    answer = body["choices"][0]["message"]
    await conversation.answer({"messages": [{"role": "user", "content": "changed"}, answer, USER]}, deadline)
    assert conversation.turns[1].reused_tokens == 0


async def test_a_template_that_drops_thinking_from_history_is_encoded_afresh(scripted_sampler, char_tokenizer):
    from tinker_cookbook.swe import Policy, TokenBudget

    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}<|im_end|>{% endfor %}<assistant>"
    )
    tokenizer = char_tokenizer(template)
    policy = Policy(scripted_sampler(["t</think>yes", "two"]), ChatFormat(tokenizer), TokenBudget(900, 90, 1000), "m")
    conversation = policy.conversation()
    deadline = Deadline(10, "test")
    body = await conversation.answer({"messages": [USER]}, deadline)
    await conversation.answer({"messages": [USER, body["choices"][0]["message"], USER]}, deadline)
    second = conversation.turns[1]
    assert second.reused_tokens == 0
    assert (
        tokenizer.decode(second.prompt_tokens)
        == "<user>go<|im_end|><assistant>yes<|im_end|><user>go<|im_end|><assistant>"
    )


def test_a_tokenizer_without_a_chat_template_is_refused_with_the_fix(char_tokenizer):
    with pytest.raises(SettingError, match="instruct model"):
        ChatFormat(char_tokenizer(None))


def test_spellings_of_the_same_message_compare_equal():
    one = read_request({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}).messages[0]
    assert canonical(one) == canonical({"role": "user", "content": "hi", "name": None})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ([], "body"),
        ({}, "messages"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\]"),
        ({"messages": [USER], "n": 2}, "n is 2"),
        ({"messages": [USER], "max_tokens": 0}, "max_tokens"),
        ({"messages": [USER], "temperature": "hot"}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text parts only"),
    ],
)
def test_a_wrong_request_is_refused_with_the_field(body, param):
    with pytest.raises(RequestRefused, match=param) as caught:
        read_request(body)
    assert caught.value.status == 400
    assert caught.value.body()["error"]["type"] == "invalid_request_error"
