"""Answers graded by a second model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import chz

import tinker
from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.completers import MessageCompleter, StopCondition, TinkerMessageCompleter
from tinker_cookbook.recipes.rubric.data import RubricDatapoint, load_datapoints
from tinker_cookbook.renderers import Message, get_text_content
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    Observation,
    RLDataset,
    RLDatasetBuilder,
    StepResult,
)
from tinker_cookbook.utils import logtree

FORMAT_COEF = 0.1


class RubricGradedEnv(Env):
    """Reward: sum (or mean) of the rubric scores + 0.1 · (format − 1); the format is a clean end of the answer."""

    def __init__(
        self,
        datapoint: RubricDatapoint,
        renderer: renderers.Renderer,
        grader: MessageCompleter,
        reduction: Literal["sum", "mean"] = "sum",
    ) -> None:
        self.datapoint, self.renderer, self.grader, self.reduction = datapoint, renderer, grader, reduction

    @property
    def stop_condition(self) -> StopCondition:
        """Where the answer ends."""
        return self.renderer.get_stop_sequences()

    async def initial_observation(self) -> tuple[Observation, StopCondition]:
        return self.renderer.build_generation_prompt(self.datapoint.convo), self.stop_condition

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        message, termination = self.renderer.parse_response(action)
        answer = Message(role="assistant", content=get_text_content(message))
        conversation = [*self.datapoint.convo, answer]

        async def grade(index: int) -> float | None:
            rubric = self.datapoint.rubric_items[index]
            return rubric.find_score(get_text_content(await self.grader(rubric.get_grader_prompt(conversation))))

        scores = await asyncio.gather(*(grade(i) for i in range(len(self.datapoint.rubric_items))))
        readable = [score if score is not None else 0.0 for score in scores]
        total = sum(readable) if self.reduction == "sum" else sum(readable) / len(readable)
        format_ok = float(termination.is_stop_sequence)
        logtree.log_text(f"{get_text_content(answer)!r}: scores {scores}, format {bool(format_ok)}")
        return StepResult(
            reward=total + FORMAT_COEF * (format_ok - 1),
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=self.stop_condition,
            metrics={
                "format": format_ok,
                "rubric_score": total,
                "unreadable_grades": sum(score is None for score in scores),
            },
        )


@dataclass(frozen=True)
class RubricGroupBuilder(EnvGroupBuilder):
    """Several answers to one conversation."""

    datapoint: RubricDatapoint
    renderer: renderers.Renderer
    grader: MessageCompleter
    num_envs: int

    async def make_envs(self) -> Sequence[Env]:
        return [RubricGradedEnv(self.datapoint, self.renderer, self.grader) for _ in range(self.num_envs)]

    def logging_tags(self) -> list[str]:
        return ["rubric"]


class RubricDataset(RLDataset):
    """Conversations in batches."""

    def __init__(
        self,
        rows: list[RubricDatapoint],
        renderer: renderers.Renderer,
        grader: MessageCompleter,
        batch: int,
        group: int,
    ) -> None:
        self.rows, self.renderer, self.grader, self.batch, self.group = rows, renderer, grader, batch, group

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        rows = self.rows[index * self.batch : (index + 1) * self.batch]
        return [RubricGroupBuilder(row, self.renderer, self.grader, self.group) for row in rows]

    def __len__(self) -> int:
        return max(len(self.rows) // self.batch, 1)


@chz.chz
class RubricDatasetBuilder(RLDatasetBuilder):
    """Rubric data and the grader's model."""

    train_jsonl_path: str
    test_jsonl_path: str | None
    groups_per_batch: int
    train_group_size: int
    test_group_size: int
    renderer_name: str
    model_name_for_tokenizer: str
    grader_llm_name: str
    grader_renderer_name: str
    base_url: str | None = None
    grader_max_tokens: int = 64

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name_for_tokenizer)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        service = tinker.ServiceClient(base_url=self.base_url)
        client = await service.create_sampling_client(base_model=self.grader_llm_name)
        grader_renderer = renderers.get_renderer(
            self.grader_renderer_name, tokenizer_utils.get_tokenizer(self.grader_llm_name)
        )
        grader = TinkerMessageCompleter(client, grader_renderer, self.grader_max_tokens, temperature=0.0)
        train = load_datapoints(self.train_jsonl_path)
        dataset = RubricDataset(train, renderer, grader, self.groups_per_batch, self.train_group_size)
        if self.test_jsonl_path is None:
            return dataset, None
        test = load_datapoints(self.test_jsonl_path)
        return dataset, RubricDataset(test, renderer, grader, len(test), self.test_group_size)
