"""Benchmarks of questions with checkable answers. Rows come from the hub, or from ``dataset_path`` (JSONL)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tinker_cookbook.eval.benchmarks.grading import (
    check_gsm8k,
    extract_boxed,
    extract_gsm8k_answer,
    extract_mcq_answer,
    format_mcq_choices,
    same_answer,
)
from tinker_cookbook.eval.benchmarks.registry import register
from tinker_cookbook.eval.benchmarks.types import BenchmarkBuilder, BenchmarkConfig, BenchmarkExample
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.renderers import Message, Renderer
from tinker_cookbook.rl.problem_env import ProblemEnv
from tinker_cookbook.rl.types import Env
from tinker_cookbook.utils.file_utils import read_jsonl

Check = Callable[[str, str], bool]


class QuestionEnv(ProblemEnv):
    """A question, its answer and a way to compare."""

    def __init__(self, question: str, answer: str, check: Check, renderer: Renderer, system_prompt: str | None) -> None:
        prefix = [Message(role="system", content=system_prompt)] if system_prompt else []
        super().__init__(renderer, prefix, format_coef=0.0)
        self.question, self.answer, self.check = question, answer, check

    def get_question(self) -> str:
        return self.question

    def check_format(self, sample_str: str) -> bool:
        return True

    def check_answer(self, sample_str: str) -> bool:
        return self.check(sample_str, self.answer)

    def get_reference_answer(self) -> str:
        return self.answer


@dataclass(frozen=True)
class QuestionBenchmark(BenchmarkBuilder):
    """Questions of a dataset. ``read`` gives (question, answer) of a row."""

    name: str
    path: str
    config_name: str | None
    split: str
    read: Callable[[dict[str, Any]], tuple[str, str]]
    check: Check

    def _rows(self, config: BenchmarkConfig) -> Sequence[dict[str, Any]]:
        if config.dataset_path is not None:
            return read_jsonl(config.dataset_path)
        import datasets

        try:
            return list(datasets.load_dataset(self.path, self.config_name, split=self.split))
        except Exception as error:
            raise ConfigurationError(
                f"benchmark {self.name}: dataset {self.path!r} cannot be loaded ({error}); give dataset_path=<file>.jsonl"
            ) from error

    def make_envs(self, renderer: Renderer, config: BenchmarkConfig) -> Sequence[Env]:
        return [example.make_env() for example in self.make_examples(renderer, config)]

    def make_examples(self, renderer: Renderer, config: BenchmarkConfig) -> Sequence[BenchmarkExample]:
        examples = []
        for index, row in enumerate(self._rows(config)[: config.max_examples]):
            try:
                question, answer = self.read(row)
            except KeyError as error:
                raise DataFormatError(f"benchmark {self.name}, row {index}: field {error} is missing") from error
            env = partial(QuestionEnv, question, answer, self.check, renderer, config.system_prompt)
            examples.append(BenchmarkExample(f"{self.name}-{index}", env))
        return examples


_BOXED = "\n\nWrite the final answer inside \\boxed{}."


def _gsm8k(row: dict[str, Any]) -> tuple[str, str]:
    answer = extract_gsm8k_answer(row["answer"])
    return row["question"] + _BOXED, answer if answer is not None else str(row["answer"])


def _math(row: dict[str, Any]) -> tuple[str, str]:
    return row["problem"] + _BOXED, str(row["answer"])


def _aime(row: dict[str, Any]) -> tuple[str, str]:
    return (row.get("problem") or row["question"]) + _BOXED, str(row["answer"])


def _mmlu_pro(row: dict[str, Any]) -> tuple[str, str]:
    question = f"{row['question']}\n\n{format_mcq_choices(row['options'])}\n\nEnd with 'The answer is <letter>.'"
    return question, str(row["answer"])


def _mmlu_redux(row: dict[str, Any]) -> tuple[str, str]:
    question = f"{row['question']}\n\n{format_mcq_choices(row['choices'])}\n\nEnd with 'The answer is <letter>.'"
    return question, chr(ord("A") + int(row["answer"]))


def _supergpqa(row: dict[str, Any]) -> tuple[str, str]:
    question = f"{row['question']}\n\n{format_mcq_choices(row['options'])}\n\nEnd with 'The answer is <letter>.'"
    return question, str(row["answer_letter"])


def _boxed(response: str, expected: str) -> bool:
    given = extract_boxed(response)
    return given is not None and same_answer(given, expected)


def _letter(response: str, expected: str) -> bool:
    return extract_mcq_answer(response, [chr(ord("A") + i) for i in range(26)]) == expected


register(QuestionBenchmark("gsm8k", "openai/gsm8k", "main", "test", _gsm8k, check_gsm8k))
register(QuestionBenchmark("math500", "HuggingFaceH4/MATH-500", None, "test", _math, _boxed))
register(QuestionBenchmark("aime", "math-ai/aime25", None, "test", _aime, _boxed))
register(QuestionBenchmark("mmlu_pro", "TIGER-Lab/MMLU-Pro", None, "test", _mmlu_pro, _letter))
register(QuestionBenchmark("mmlu_redux", "edinburgh-dawg/mmlu-redux-2.0", None, "test", _mmlu_redux, _letter))
register(QuestionBenchmark("supergpqa", "m-a-p/SuperGPQA", None, "train", _supergpqa, _letter))
