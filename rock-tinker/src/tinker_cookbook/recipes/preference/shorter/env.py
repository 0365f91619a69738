"""A preference for short completions."""

from __future__ import annotations

import chz

from tinker_cookbook.preference.types import Comparison, PreferenceModel, PreferenceModelBuilder
from tinker_cookbook.renderers import Message, get_text_content


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
