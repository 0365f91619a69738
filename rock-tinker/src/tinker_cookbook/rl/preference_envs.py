"""Rewards from pairwise comparison inside a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import chz
import numpy as np

import tinker
from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import (
    Comparison,
    LabeledComparison,
    PreferenceModel,
    PreferenceModelBuilder,
)
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Metrics,
    Observation,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
    Trajectory,
)
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.logtree_formatters import ConversationFormatter


class PreferenceEnv(Env):
    """One answer to a conversation; its reward comes from the group."""

    def __init__(self, convo_prefix: list[Message], policy_renderer: renderers.Renderer) -> None:
        self.convo_prefix = convo_prefix
        self.policy_renderer = policy_renderer

    @property
    def stop_condition(self) -> StopCondition:
        """Where the answer ends."""
        return self.policy_renderer.get_stop_sequences()

    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        return self.policy_renderer.build_generation_prompt(self.convo_prefix), self.stop_condition

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        return StepResult(0.0, True, tinker.ModelInput.empty(), self.stop_condition)


class TournamentPattern(StrEnum):
    """Who meets whom."""

    ALL_PAIRS_BOTH_WAYS = "all_pairs_both_ways"
    ALL_PAIRS_ONE_WAY = "all_pairs_one_way"


def get_pairs(n: int, pattern: TournamentPattern) -> list[tuple[int, int]]:
    """Pairs of different numbers below n: every order, or each pair once."""
    if pattern is TournamentPattern.ALL_PAIRS_BOTH_WAYS:
        return [(i, j) for i in range(n) for j in range(n) if i != j]
    return [(i, j) for i in range(n) for j in range(i + 1, n)]


def get_pairs_chunked(n: int, pattern: TournamentPattern, chunk_size: int) -> list[tuple[int, int]]:
    """Pairs within consecutive chunks of ``chunk_size`` numbers."""
    pairs = []
    for start in range(0, n, chunk_size):
        size = min(chunk_size, n - start)
        pairs += [(start + i, start + j) for i, j in get_pairs(size, pattern)]
    return pairs


@dataclass(frozen=True)
class PairwisePreferenceGroupBuilder(EnvGroupBuilder):
    """Answers of a group meet in a tournament: reward = mean(wins − losses); −1 for a missing stop sequence.

    ``eval_target_completion_A``: every answer meets this completion instead. ``matchup_group_size``: the tournament is
    held in chunks of this size.
    """

    convo_prefix: list[Message]
    policy_renderer: renderers.Renderer
    tournament_pattern: TournamentPattern
    preference_model: PreferenceModel
    num_envs: int
    content_preprocessor: Callable[[str], str] | None = None
    matchup_group_size: int = 4
    eval_target_completion_A: list[Message] | None = None

    async def make_envs(self) -> Sequence[Env]:
        return [PreferenceEnv(self.convo_prefix, self.policy_renderer) for _ in range(self.num_envs)]

    def get_response_message(self, trajectory: Trajectory) -> tuple[list[Message], bool]:
        """The answer as messages, and whether it ended with its stop sequence."""
        message, termination = self.policy_renderer.parse_response(trajectory.transitions[0].ac.tokens)
        content = message["content"]
        if self.content_preprocessor is not None and isinstance(content, str):
            content = self.content_preprocessor(content)
        return [Message(role="assistant", content=content)], termination.is_stop_sequence

    def comparison_reward_for_second_messages(self, message_i: list[Message], message_j: list[Message]) -> Comparison:
        """The comparison whose judgement is the reward of the second answer."""
        return Comparison(self.convo_prefix, message_i, message_j)

    async def _reward(self, message_i: list[Message], message_j: list[Message]) -> float:
        return await self.preference_model(self.comparison_reward_for_second_messages(message_i, message_j))

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        answers = [self.get_response_message(trajectory) for trajectory in trajectory_group]
        messages = [message for message, _ in answers]
        results: list[list[float]] = [[] for _ in messages]
        if self.eval_target_completion_A is not None:
            target = self.eval_target_completion_A
            scores = await asyncio.gather(*(self._reward(target, message) for message in messages))
            for index, score in enumerate(scores):
                results[index].append(score)
        else:
            pairs = get_pairs_chunked(len(messages), self.tournament_pattern, self.matchup_group_size)
            scores = await asyncio.gather(*(self._reward(messages[i], messages[j]) for i, j in pairs))
            for (i, j), score in zip(pairs, scores, strict=True):
                results[j].append(score)
                results[i].append(-score)
        out: list[tuple[float, Metrics]] = []
        for (message, ended), scores_i in zip(answers, results, strict=True):
            win_minus_loss = float(np.mean(scores_i)) if scores_i else 0.0
            format_penalty = 0.0 if ended else -1.0
            out.append((win_minus_loss + format_penalty, {"win_minus_loss": win_minus_loss, "format": float(ended)}))
            logtree.log_formatter(ConversationFormatter([*self.convo_prefix, *message]))
            logtree.log_text(f"win minus loss {win_minus_loss:.2f}, stop sequence {ended}")
        return out

    def logging_tags(self) -> list[str]:
        return ["pairwise_preference"]


class PairwisePreferenceDataset(RLDataset):
    """One group per comparison's prompt. ``comparisons``: which ones, by default the training data of the builder; whole
    batches only. ``against_completion_A``: answers meet the comparison's completion A instead of each other."""

    def __init__(
        self,
        comparison_builder: ComparisonDatasetBuilder,
        renderer: renderers.Renderer,
        batch_size: int,
        preference_model: PreferenceModel,
        tournament_pattern: TournamentPattern = TournamentPattern.ALL_PAIRS_BOTH_WAYS,
        group_size: int = 4,
        content_preprocessor: Callable[[str], str] | None = None,
        *,
        comparisons: Sequence[LabeledComparison] | None = None,
        against_completion_A: bool = False,
    ) -> None:
        if comparisons is None:
            comparisons = comparison_builder.get_labeled_comparisons()[0]
        self.comparison_builder, self.comparisons, self.batch_size = comparison_builder, comparisons, batch_size
        self.renderer, self.preference_model = renderer, preference_model
        self.tournament_pattern, self.group_size = tournament_pattern, group_size
        self.content_preprocessor, self.against_completion_A = content_preprocessor, against_completion_A

    def get_batch(self, index: int) -> list[EnvGroupBuilder]:
        rows = self.comparisons[index * self.batch_size : (index + 1) * self.batch_size]
        return [
            PairwisePreferenceGroupBuilder(
                convo_prefix=row.comparison.prompt_conversation,
                policy_renderer=self.renderer,
                tournament_pattern=self.tournament_pattern,
                preference_model=self.preference_model,
                num_envs=self.group_size,
                content_preprocessor=self.content_preprocessor,
                eval_target_completion_A=row.comparison.completion_A if self.against_completion_A else None,
            )
            for row in rows
        ]

    def __len__(self) -> int:
        return len(self.comparisons) // self.batch_size


@chz.chz
class PairwisePreferenceRLDatasetBuilder(RLDatasetBuilder):
    """Prompts of comparisons, answers judged by a preference model. Held-out answers meet completion A."""

    comparison_builder: ComparisonDatasetBuilder
    batch_size: int
    policy_renderer_name: str
    policy_model_name: str
    group_size: int
    preference_model_builder: PreferenceModelBuilder
    tournament_pattern: TournamentPattern = TournamentPattern.ALL_PAIRS_BOTH_WAYS
    content_preprocessor: Callable[[str], str] | None = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(self.policy_model_name)
        renderer = renderers.get_renderer(self.policy_renderer_name, tokenizer, model_name=self.policy_model_name)
        model = await asyncio.to_thread(self.preference_model_builder)
        train, test = self.comparison_builder.get_labeled_comparisons()

        def dataset(
            rows: Sequence[LabeledComparison], batch_size: int, group_size: int, held_out: bool
        ) -> PairwisePreferenceDataset:
            return PairwisePreferenceDataset(
                self.comparison_builder,
                renderer,
                batch_size,
                model,
                self.tournament_pattern,
                group_size,
                self.content_preprocessor,
                comparisons=rows,
                against_completion_A=held_out,
            )

        return dataset(train, self.batch_size, self.group_size, False), dataset(
            test, len(test), 1, True
        ) if test else None
