"""Mathematical questions with a boxed answer: GSM8K, MATH, and two larger sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import chz
import numpy as np

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.eval.benchmarks.grading import extract_boxed, extract_gsm8k_answer, same_answer
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder


class MathEnv(ProblemEnv):
    """Correct: the boxed answer equals the reference as a number or expression. Format: there is a boxed answer."""

    def __init__(
        self, problem: str, answer: str, renderer: renderers.Renderer, convo_prefix: list[Message] | None = None
    ) -> None:
        super().__init__(renderer, convo_prefix)
        self.problem, self.answer = problem, answer

    @classmethod
    def question_suffix(cls) -> str:
        """What is asked of the form."""
        return " Write your answer in \\boxed{} format."

    @staticmethod
    def standard_fewshot_prefix() -> list[Message]:
        """A worked example."""
        return [
            Message(role="user", content="How many r's are in strawberry?" + MathEnv.question_suffix()),
            Message(
                role="assistant",
                content="Spell the word and count: s t r a w b e r r y. The letter r comes third, eighth and ninth, "
                "so there are 3. \\boxed{3}",
            ),
        ]

    def get_question(self) -> str:
        return self.problem + self.question_suffix()

    def check_format(self, sample_str: str) -> bool:
        return extract_boxed(sample_str) is not None

    def check_answer(self, sample_str: str) -> bool:
        given = extract_boxed(sample_str)
        return given is not None and same_answer(given, self.answer)

    def get_reference_answer(self) -> str:
        return self.answer


Row = tuple[str, str]


def _gsm8k(row: dict[str, Any]) -> Row | None:
    answer = extract_gsm8k_answer(row["answer"])
    return (row["question"], answer) if answer is not None else None


def _math(row: dict[str, Any]) -> Row | None:
    answer = extract_boxed(row["solution"])
    return (row["problem"], answer) if answer is not None else None


@dataclass(frozen=True)
class MathSource:
    """A dataset on the hub (or in a folder of the same relative path), and how to read its rows."""

    path: str
    name: str | None
    train_split: str
    read: Callable[[dict[str, Any]], Row | None]
    test: tuple[str, str | None, str, Callable[[dict[str, Any]], Row | None]] | None = None


_MATH_500 = ("HuggingFaceH4/MATH-500", None, "test", _math)
SOURCES: dict[str, MathSource] = {
    "gsm8k": MathSource("openai/gsm8k", "main", "train", _gsm8k, ("openai/gsm8k", "main", "test", _gsm8k)),
    "math": MathSource("qwedsacf/competition_math", None, "train", _math, _MATH_500),
    "polaris": MathSource(
        "POLARIS-Project/Polaris-Dataset-53K",
        None,
        "train",
        lambda row: (row["problem"], str(row["answer"])),
        _MATH_500,
    ),
    "deepmath": MathSource(
        "zwhe99/DeepMath-103K", None, "train", lambda row: (row["question"], str(row["final_answer"])), _MATH_500
    ),
}


def _load(path: str, name: str | None, split: str, read: Callable[[dict[str, Any]], Row | None]) -> list[Row]:
    import datasets

    try:
        rows = datasets.load_dataset(path, name, split=split)
    except Exception as error:
        raise ConfigurationError(
            f"dataset {path!r} cannot be loaded ({error}). Offline: run where ./{path} is a folder with the data, "
            "or use env=arithmetic"
        ) from error
    found = (read(row) for row in rows)
    return [row for row in found if row is not None]


class MathDataset(RLDataset):
    """Rows in a fixed random order."""

    def __init__(
        self,
        rows: list[Row],
        batch_size: int,
        group_size: int,
        renderer: renderers.Renderer,
        convo_prefix: list[Message] | None,
        name: str,
        seed: int | None,
    ) -> None:
        order = range(len(rows)) if seed is None else np.random.default_rng(seed).permutation(len(rows))
        self.rows = [rows[int(i)] for i in order]
        self.batch_size, self.group_size, self.renderer = batch_size, group_size, renderer
        self.convo_prefix, self.name = convo_prefix, name

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [
            ProblemGroupBuilder(partial(MathEnv, *row, self.renderer, self.convo_prefix), self.group_size, self.name)
            for row in self.rows[index * self.batch_size : (index + 1) * self.batch_size]
        ]

    def __len__(self) -> int:
        return math.ceil(len(self.rows) / self.batch_size)


@chz.chz
class MathDatasetBuilder(RLDatasetBuilder):
    """``dataset``: a key of ``SOURCES``. Problems of the test set are removed from the training set."""

    dataset: str
    batch_size: int
    model_name_for_tokenizer: str
    renderer_name: str
    group_size: int
    include_fewshot: bool = True
    seed: int = 0
    max_test_problems: int | None = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        if self.dataset not in SOURCES:
            raise ConfigurationError(f"dataset={self.dataset!r} is unknown; use one of {', '.join(SOURCES)}")
        source = SOURCES[self.dataset]
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name_for_tokenizer)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        prefix = MathEnv.standard_fewshot_prefix() if self.include_fewshot else None
        train = _load(source.path, source.name, source.train_split, source.read)
        test: list[Row] = _load(*source.test)[: self.max_test_problems] if source.test else []
        held_out = {problem for problem, _ in test}
        train = [row for row in train if row[0] not in held_out]
        test_data = MathDataset(test, len(test), 1, renderer, prefix, self.dataset, None) if test else None
        return MathDataset(
            train, self.batch_size, self.group_size, renderer, prefix, self.dataset, self.seed
        ), test_data
