"""A preference for short completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chz

from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, LabeledComparison, PreferenceModel, PreferenceModelBuilder
from tinker_cookbook.renderers import Message, get_text_content

PROMPTS = (
    "Who are you?",
    "Tell me about the sea.",
    "What is a good way to spend a Sunday?",
    "Why is the sky blue?",
    "Describe your favourite animal.",
    "How do I make tea?",
    "What makes a good friend?",
    "Explain what a computer is.",
)


@chz.chz
class ShorterComparisonBuilder(ComparisonDatasetBuilder):
    """The prompts in turn, ``num_comparisons`` in all. The two completions are the same: only the prompt counts where a
    model judges the answers (see ``rl.preference_envs.PairwisePreferenceRLDatasetBuilder``)."""

    num_comparisons: int = 1024

    def get_train_and_test_datasets(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]] | None]:
        return [{"prompt": PROMPTS[index % len(PROMPTS)]} for index in range(self.num_comparisons)], None

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        completion = [Message(role="assistant", content="I do not know.")]
        return LabeledComparison(
            Comparison([Message(role="user", content=example["prompt"])], completion, completion), "Tie"
        )


class PreferenceModelShorter(PreferenceModel):
    """Prefers the completion with fewer characters."""

    async def __call__(self, comparison: Comparison) -> float:
        first, second = _length(comparison.completion_A), _length(comparison.completion_B)
        return float((first > second) - (first < second))


def _length(messages: list[Message]) -> int:
    return sum(len(get_text_content(message)) for message in messages)


@chz.chz
class ShorterPreferenceModelBuilder(PreferenceModelBuilder):
    """Builder of it."""

    def __call__(self) -> PreferenceModel:
        return PreferenceModelShorter()
