"""Mathematical questions with a boxed answer: GSM8K, MATH, and two larger sets."""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import chz
import numpy as np

from tinker_cookbook import renderers, tokenizer_utils
from tinker_cookbook.eval.benchmarks.grading import extract_boxed, extract_gsm8k_answer, same_answer
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder

logger = logging.getLogger(__name__)

Split: TypeAlias = Literal["train", "test"]
Prefix: TypeAlias = list[Message] | Literal["standard"] | None
Row: TypeAlias = tuple[str, str]


def safe_grade(given_answer: str, ground_truth: str, grader: str = "sympy", timeout: float = 1.0) -> bool:
    """Whether two mathematical answers are equal; False when that takes longer than ``timeout`` seconds.

    ``grader``: sympy, or math_verify where that package is installed.

    Raises:
        ConfigurationError: unknown grader, or math_verify is not installed.
    """
    compare = _grader(grader)
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.append(compare(given_answer, ground_truth)), daemon=True)
    thread.start()
    thread.join(timeout)
    if not outcome:
        logger.warning("grading %.80r against %.80r took more than %s s or failed", given_answer, ground_truth, timeout)
    return bool(outcome and outcome[0])


def _grader(name: str) -> Callable[[str, str], bool]:
    if name == "sympy":
        return same_answer
    if name != "math_verify":
        raise ConfigurationError(f"grader={name!r} is unknown; use sympy or math_verify")
    try:
        import math_verify
    except ImportError as error:
        raise ConfigurationError("grader='math_verify' needs the package math-verify") from error

    def compare(given: str, truth: str) -> bool:
        # Without limits of its own: those need signals, which only the main thread has.
        read = [math_verify.parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (truth, given)]
        return bool(math_verify.verify(*read, timeout_seconds=None))

    return compare


def extract_gsm8k_final_answer(text: str) -> str:
    """What follows the last ``####``; at the beginning of a line, without thousands separators.

    Raises:
        ValueError: there is none.
    """
    lines = [line.strip() for line in text.splitlines()]
    marked = [line.removeprefix("####") for line in lines if line.startswith("####")]
    if marked:
        return marked[-1].replace(",", "").strip()
    found = re.findall(r"####\s*(.+)", text)
    if not found:
        raise ValueError(f"no '#### answer' in {text[-80:]!r}")
    return str(found[-1]).strip()


class MathEnv(ProblemEnv):
    """Correct: the boxed answer equals the reference as a number or expression. Format: there is a boxed answer."""

    def __init__(
        self,
        problem: str,
        answer: str,
        renderer: renderers.Renderer,
        convo_prefix: list[Message] | None = None,
        grader: Literal["sympy", "math_verify"] = "sympy",
        timeout: float = 1.0,
        format_coef: float = 0.1,
        require_stop_sequence_for_format: bool = True,
    ) -> None:
        super().__init__(renderer, convo_prefix, format_coef, require_stop_sequence_for_format)
        self.problem, self.answer, self.grader, self.timeout = problem, answer, grader, timeout

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
        return given is not None and safe_grade(given, self.answer, self.grader, self.timeout)

    def get_reference_answer(self) -> str:
        return self.answer


def _gsm8k(row: dict[str, Any]) -> Row | None:
    answer = extract_gsm8k_answer(row["answer"])
    return (row["question"], answer) if answer is not None else None


def _math(row: dict[str, Any]) -> Row | None:
    answer = extract_boxed(row["solution"])
    return (row["problem"], answer) if answer is not None else None


@dataclass(frozen=True)
class MathSource:
    """A dataset on the hub (or in a folder of the same relative path), and how to read its rows.

    ``name`` None stands for every configuration; ``splits`` are joined.
    """

    path: str
    name: str | None
    splits: tuple[str, ...]
    read: Callable[[dict[str, Any]], Row | None]
    test: tuple[str, str | None, str] | None = None


SOURCES: dict[str, MathSource] = {
    "gsm8k": MathSource("openai/gsm8k", "main", ("train",), _gsm8k, ("openai/gsm8k", "main", "test")),
    "math": MathSource(
        "EleutherAI/hendrycks_math", None, ("train", "test"), _math, ("HuggingFaceH4/MATH-500", "default", "test")
    ),
    "polaris": MathSource(
        "POLARIS-Project/Polaris-Dataset-53K",
        None,
        ("train",),
        lambda row: (row["problem"], str(row["answer"])),
    ),
    "deepmath": MathSource(
        "zwhe99/DeepMath-103K",
        None,
        ("train",),
        lambda row: (row["question"], str(row["final_answer"])),
    ),
}


def _load(path: str, name: str | None, split: str, read: Callable[[dict[str, Any]], Row | None]) -> list[Row]:
    import datasets

    try:
        names = [name] if name is not None else datasets.get_dataset_config_names(path)
        rows = [row for each in names for row in datasets.load_dataset(path, each, split=split)]
    except Exception as error:
        raise ConfigurationError(
            f"dataset {path!r} cannot be loaded ({error}). Offline: run where ./{path} is a folder with the data, "
            "or use env=arithmetic"
        ) from error
    found = (read(row) for row in rows)
    return [row for row in found if row is not None]


def load_rows(dataset: str, split: Split) -> list[Row]:
    """(problem, answer) pairs of a key of ``SOURCES``; problems of the test set are removed from the training set.

    Raises:
        ConfigurationError: unknown dataset, no such split, or it cannot be loaded.
    """
    if dataset not in SOURCES:
        raise ConfigurationError(f"dataset={dataset!r} is unknown; use one of {', '.join(SOURCES)}")
    source = SOURCES[dataset]
    test: list[Row] = []
    if source.test is not None:
        test = _load(*source.test, source.read)
    if split == "test":
        if source.test is None:
            raise ConfigurationError(f"dataset={dataset!r} has no test split")
        return test
    held_out = {problem for problem, _ in test}
    rows = [row for part in source.splits for row in _load(source.path, source.name, part, source.read)]
    return [row for row in rows if row[0] not in held_out]


class ProblemRows(RLDataset):
    """Problems in batches, in a random order that follows from the seed (None: as they are)."""

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


class MathDataset(ProblemRows):
    """Hendrycks' MATH; the test split is MATH-500."""

    source = "math"

    def __init__(
        self,
        batch_size: int,
        group_size: int,
        renderer: renderers.Renderer,
        convo_prefix: list[Message] | None = None,
        split: Split = "train",
        seed: int = 0,
    ) -> None:
        rows = load_rows(self.source, split)
        order = seed if split == "train" else None
        super().__init__(rows, batch_size, group_size, renderer, convo_prefix, self.source, order)


class Gsm8kDataset(MathDataset):
    """GSM8K."""

    source = "gsm8k"


class PolarisDataset(MathDataset):
    """Polaris 53K, without a test split."""

    source = "polaris"


class DeepMathDataset(MathDataset):
    """DeepMath 103K, without a test split."""

    source = "deepmath"


@chz.chz
class MathDatasetBuilder(RLDatasetBuilder):
    """``dataset``: a key of ``SOURCES``. ``convo_prefix``: messages before every problem, "standard" for a worked example,
    or None."""

    batch_size: int
    model_name_for_tokenizer: str
    renderer_name: str
    group_size: int
    convo_prefix: Prefix = "standard"
    seed: int = 0
    dataset: str = "math"
    max_test_problems: int | None = None

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        tokenizer = tokenizer_utils.get_tokenizer(self.model_name_for_tokenizer)
        renderer = renderers.get_renderer(self.renderer_name, tokenizer, model_name=self.model_name_for_tokenizer)
        rows = load_rows(self.dataset, "train")
        prefix = MathEnv.standard_fewshot_prefix() if self.convo_prefix == "standard" else self.convo_prefix
        train = ProblemRows(rows, self.batch_size, self.group_size, renderer, prefix, self.dataset, self.seed)
        if SOURCES[self.dataset].test is None:
            return train, None
        test = load_rows(self.dataset, "test")[: self.max_test_problems]
        return train, ProblemRows(test, len(test), 1, renderer, prefix, self.dataset, None)


@chz.chz
class Gsm8kDatasetBuilder(MathDatasetBuilder):
    """GSM8K with its test split."""

    dataset: str = "gsm8k"


@chz.chz
class PolarisDatasetBuilder(MathDatasetBuilder):
    """Polaris 53K, without a worked example and without a test split."""

    dataset: str = "polaris"
    convo_prefix: Prefix = None


@chz.chz
class DeepMathDatasetBuilder(MathDatasetBuilder):
    """DeepMath 103K, without a worked example and without a test split."""

    dataset: str = "deepmath"
    convo_prefix: Prefix = None


def get_math_dataset_builder(
    dataset_name: str,
    batch_size: int,
    model_name_for_tokenizer: str,
    renderer_name: str,
    group_size: int,
    seed: int = 0,
) -> MathDatasetBuilder:
    """The builder of a dataset by name: math, gsm8k, polaris or deepmath.

    Raises:
        ConfigurationError: unknown name.
    """
    builders: dict[str, type[MathDatasetBuilder]] = {
        "math": MathDatasetBuilder,
        "gsm8k": Gsm8kDatasetBuilder,
        "polaris": PolarisDatasetBuilder,
        "deepmath": DeepMathDatasetBuilder,
    }
    if dataset_name not in builders:
        raise ConfigurationError(f"env={dataset_name!r} is unknown; use one of arithmetic, {', '.join(builders)}")
    return builders[dataset_name](
        batch_size=batch_size,
        model_name_for_tokenizer=model_name_for_tokenizer,
        renderer_name=renderer_name,
        group_size=group_size,
        seed=seed,
    )
