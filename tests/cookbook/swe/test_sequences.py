"""Turns become sequences and datums; advantages and the KL penalty land on sampled tokens only."""

from __future__ import annotations

import random

import pytest

from tinker_cookbook.swe import Deadline, Turn, datum, group_advantages, merge_turns, penalise_kl, spread


def turn(index, prompt, completion):
    return Turn(
        index=index,
        messages=(),
        answer={},
        prompt_text="",
        prompt_tokens=tuple(prompt),
        completion_tokens=tuple(completion),
        logprobs=tuple(-0.1 * (i + 1) for i in range(len(completion))),
        completion_text="",
        finish_reason="stop",
        reused_tokens=0,
        temperature=1.0,
        seconds=0.0,
    )


def test_turns_that_extend_each_other_become_one_sequence():
    first = turn(0, [1, 2], [3, 4])
    second = turn(1, [1, 2, 3, 4, 5], [6])
    (sequence,) = merge_turns([first, second])
    assert sequence.tokens == [1, 2, 3, 4, 5, 6]
    assert sequence.sampled == [False, False, True, True, False, True]
    assert sequence.logprobs == [0, 0, -0.1, -0.2, 0, -0.1]
    assert sequence.turns == [0, 1]


def test_a_rewritten_history_starts_a_sequence_of_its_own():
    sequences = merge_turns([turn(0, [1, 2], [3]), turn(1, [9, 2, 3, 4], [5]), turn(2, [9, 2, 3, 4, 5, 6], [7])])
    assert [sequence.turns for sequence in sequences] == [[0], [1, 2]]


def test_two_threads_of_one_rollout_stay_apart_and_every_sampled_token_counts_once():
    rng = random.Random(7)
    for _ in range(50):
        threads = [[rng.randrange(100) for _ in range(3)] for _ in range(3)]
        turns = []
        for index in range(12):
            tokens = rng.choice(threads)
            completion = [rng.randrange(100) for _ in range(rng.randrange(1, 4))]
            turns.append(turn(index, tokens, completion))
            tokens += completion + [rng.randrange(100)]
        sequences = merge_turns(turns)
        assert sum(sum(sequence.sampled) for sequence in sequences) == sum(len(t.completion_tokens) for t in turns)
        for sequence in sequences:
            last = turns[sequence.turns[-1]]
            assert sequence.tokens == list(last.prompt_tokens + last.completion_tokens)


def test_a_datum_is_shifted_by_one_and_zero_where_nothing_was_sampled():
    (sequence,) = merge_turns([turn(0, [1, 2], [3, 4])])
    made = datum(sequence, [7.0, 7.0, 2.0, 2.0])
    assert made.model_input.to_ints() == [1, 2, 3]
    assert made.loss_fn_inputs["target_tokens"].tolist() == [2, 3, 4]
    assert made.loss_fn_inputs["logprobs"].tolist() == pytest.approx([0, -0.1, -0.2])
    assert made.loss_fn_inputs["advantages"].tolist() == [0, 2, 2]


def test_advantages_of_another_length_than_the_sequence_are_refused():
    (sequence,) = merge_turns([turn(0, [1], [2])])
    with pytest.raises(ValueError, match="3 advantages for 2 tokens"):
        datum(sequence, [0, 0, 0])


def test_group_advantages_are_centred_and_by_option_scaled():
    assert group_advantages([1, 0, 0, 1]) == [0.5, -0.5, -0.5, 0.5]
    scaled = group_advantages([1, 0, 0, 0], "std")
    assert sum(scaled) == pytest.approx(0, abs=1e-9)
    assert sum(value * value for value in scaled) / 4 == pytest.approx(1, rel=1e-4)
    assert group_advantages([1, 1], "std") == [0, 0]
    assert group_advantages([]) == []


def test_the_kl_penalty_equals_its_formula_and_takes_nothing_from_the_rollout_as_a_whole():
    sequences = merge_turns([turn(0, [1, 2], [3, 4]), turn(1, [9], [8, 7, 6])])
    rng = random.Random(3)
    reference = [[-rng.random() for _ in sequence.tokens] for sequence in sequences]
    before = [spread(sequence, 1.5) for sequence in sequences]
    after, mean = penalise_kl(sequences, before, reference, 0.1)
    gaps = [
        (own - ref)
        for sequence, row in zip(sequences, reference, strict=True)
        for own, ref, chosen in zip(sequence.logprobs, row, sequence.sampled, strict=True)
        if chosen
    ]
    assert mean == pytest.approx(sum(gaps) / len(gaps))
    moved = [
        new
        for sequence, row in zip(sequences, after, strict=True)
        for new, chosen in zip(row, sequence.sampled, strict=True)
        if chosen
    ]
    assert moved == pytest.approx([1.5 + 0.1 * (mean - gap) for gap in gaps])
    assert sum(moved) == pytest.approx(1.5 * len(gaps))
    assert [
        value for row, s in zip(after, sequences, strict=True) for value, c in zip(row, s.sampled, strict=True) if not c
    ] == [0] * 3


async def test_a_conversation_with_reused_tokens_becomes_one_datum(policy_of, scripted_sampler):
    conversation = policy_of(scripted_sampler(["abc", "ab"])).conversation()
    messages = [{"role": "user", "content": "go"}]
    for _ in range(2):
        body = await conversation.answer({"messages": messages}, Deadline(5, "test"))
        messages = [*messages, body["choices"][0]["message"], {"role": "user", "content": "more"}]
    assert len(merge_turns(conversation.turns)) == 1
