"""Sums of two numbers below 100: the smallest RL problem, without any data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import chz
import numpy as np

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder


class ArithmeticEnv(ProblemEnv):
    """``What is x + y?`` with a worked example before it. The answer is the last number that is written."""

    def __init__(
        self,
        x: int,
        y: int,
        renderer: renderers.Renderer,
        convo_prefix: list[Message] | None = None,
        format_coef: float = 0.1,
        require_stop_sequence_for_format: bool = True,
    ) -> None:
        super().__init__(renderer, convo_prefix, format_coef, require_stop_sequence_for_format)
        self.x, self.y = x, y

    @staticmethod
    def standard_fewshot_prefix() -> list[Message]:
        """The worked example."""
        return [Message(role="user", content="What is 4 + 5?"), Message(role="assistant", content="9")]

    def get_question(self) -> str:
        return f"What is {self.x} + {self.y}?"

    def check_answer(self, sample_str: str) -> bool:
        found = re.findall(r"-?\d[\d,]*", sample_str)
        return bool(found) and int(found[-1].replace(",", "")) == self.x + self.y

    def check_format(self, sample_str: str) -> bool:
        return True

    def get_reference_answer(self) -> str:
        return str(self.x + self.y)


class ArithmeticDataset(RLDataset):
    """Random sums; the same for the same batch number."""

    def __init__(
        self,
        batch_size: int,
        group_size: int,
        renderer: renderers.Renderer,
        n_batches: int,
        include_fewshot: bool = True,
        seed: int = 0,
        largest: int = 100,
    ) -> None:
        self.batch_size, self.group_size, self.renderer = batch_size, group_size, renderer
        self.n_batches, self.include_fewshot, self.seed, self.largest = n_batches, include_fewshot, seed, largest

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        rng = np.random.default_rng([self.seed, index])
        prefix = ArithmeticEnv.standard_fewshot_prefix() if self.include_fewshot else None
        return [
            ProblemGroupBuilder(
                partial(ArithmeticEnv, int(x), int(y), self.renderer, prefix), self.group_size, "arithmetic"
            )
            for x, y in rng.integers(0, self.largest, (self.batch_size, 2))
        ]

    def __len__(self) -> int:
        return self.n_batches


@chz.chz
class ArithmeticDatasetBuilder(RLDatasetBuilder):
    """``largest``: numbers lie below it. ``n_batches``: length of the dataset."""

    batch_size: int
    model_name_for_tokenizer: str
    renderer_name: str
    group_size: int
    n_batches: int = 100
    include_fewshot: bool = True
    seed: int = 0
    largest: int = 100

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name_for_tokenizer)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        dataset = ArithmeticDataset(
            self.batch_size, self.group_size, renderer, self.n_batches, self.include_fewshot, self.seed, self.largest
        )
        return dataset, None
