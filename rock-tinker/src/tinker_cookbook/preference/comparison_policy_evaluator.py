"""Win rate of a policy against fixed completions, judged by a preference model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

import tinker
from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.completers import TinkerMessageCompleter
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.preference.types import Comparison, PreferenceModel
from tinker_cookbook.renderers import Message


class ComparisonEvaluator(SamplingClientEvaluator):
    """``win_rate`` and ``stderr``: 1 when the policy's completion is preferred, 0.5 on a tie.

    ``both_ways``: each pair is judged in both orders.
    """

    def __init__(
        self,
        preference_model_builder: Callable[[], PreferenceModel],
        comparisons: Sequence[Comparison],
        renderer_name: str,
        model_name_for_tokenizer: str,
        both_ways: bool = True,
        max_tokens: int = 1024,
        content_preprocessor: Callable[[str], str] | None = None,
    ) -> None:
        self.preference_model = preference_model_builder()
        self.comparisons = comparisons
        tokenizer = tokenizer_utils.get_tokenizer(model_name_for_tokenizer)
        self.renderer = renderers.get_renderer(renderer_name, tokenizer, model_name=model_name_for_tokenizer)
        self.both_ways = both_ways
        self.max_tokens = max_tokens
        self.content_preprocessor = content_preprocessor

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        policy = TinkerMessageCompleter(sampling_client, self.renderer, self.max_tokens)

        async def judge(comparison: Comparison) -> float:
            answer = await policy(comparison.prompt_conversation)
            if self.content_preprocessor is not None and isinstance(answer["content"], str):
                answer = Message(role=answer["role"], content=self.content_preprocessor(answer["content"]))
            duel = Comparison(comparison.prompt_conversation, comparison.completion_A, [answer])
            score = await self.preference_model(duel)
            if self.both_ways:
                score = (score - await self.preference_model(duel.swap())) / 2
            return (score + 1) / 2

        scores = np.asarray(await asyncio.gather(*(judge(comparison) for comparison in self.comparisons)))
        return {
            "win_rate": float(scores.mean()),
            "stderr": float(scores.std() / np.sqrt(len(scores))),
        }
