"""From turns to training data: token sequences, merged while a prompt extends the one before, and their datums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tinker
from tinker_cookbook.swe.trajectory import Turn


@dataclass
class TokenSequence:
    """Tokens of one or more turns in a row.

    Attributes (all of length T):
        tokens: prompt and sampled tokens as the policy saw them.
        logprobs: the sampler's logprob of a sampled token, 0 elsewhere.
        sampled: True where the policy chose the token.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def append(self, turn: Turn) -> None:
        """Adds a turn whose prompt starts with these tokens."""
        observed = list(turn.prompt_tokens[len(self.tokens) :])
        self.tokens += observed + list(turn.completion_tokens)
        self.logprobs += [0.0] * len(observed) + list(turn.logprobs)
        self.sampled += [False] * len(observed) + [True] * len(turn.completion_tokens)
        self.turns.append(turn.index)

    def is_extended_by(self, turn: Turn) -> bool:
        """Whether the turn's prompt starts with these tokens."""
        length = len(self.tokens)
        return length <= len(turn.prompt_tokens) and list(turn.prompt_tokens[:length]) == self.tokens


def merge_turns(turns: Sequence[Turn]) -> list[TokenSequence]:
    """Sequences that hold each sampled token once.

    A turn joins the longest open sequence that its prompt extends, else it starts its own (the agent has rewritten its
    history, or talks in several threads). Merging costs O(T) instead of O(T²) tokens over a rollout.
    """
    sequences: list[TokenSequence] = []
    for turn in turns:
        if not turn.completion_tokens:
            continue
        open_ones = [sequence for sequence in sequences if sequence.is_extended_by(turn)]
        if open_ones:
            max(open_ones, key=lambda sequence: len(sequence.tokens)).append(turn)
        else:
            sequence = TokenSequence()
            sequence.append(turn)
            sequences.append(sequence)
    return sequences


def datum(sequence: TokenSequence, advantages_T: Sequence[float]) -> tinker.Datum:
    """A datum for the policy-gradient losses.

    Args:
        advantages_T: one a token of the sequence; those of tokens that were not sampled are ignored.

    Returns:
        A datum of length T−1: entry i is about the prediction made at token i, so targets, logprobs and advantages are
        those of token i+1; logprobs and advantages are 0 where the target was not sampled.
    """
    if len(advantages_T) != len(sequence.tokens):
        raise ValueError(f"{len(advantages_T)} advantages for {len(sequence.tokens)} tokens; give one a token")
    kept = [value if chosen else 0.0 for value, chosen in zip(advantages_T, sequence.sampled, strict=True)]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(sequence.tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=sequence.tokens[1:], dtype="int64"),
            "logprobs": tinker.TensorData(data=sequence.logprobs[1:], dtype="float32"),
            "advantages": tinker.TensorData(data=kept[1:], dtype="float32"),
        },
    )
