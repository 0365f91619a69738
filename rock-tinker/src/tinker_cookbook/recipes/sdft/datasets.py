"""Questions with golden answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tinker_cookbook.distillation.datasets import PromptOnlyEnv
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes import entry
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.problem_env import ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder
from tinker_cookbook.supervised.data import conversation_from_row
from tinker_cookbook.utils.file_utils import read_jsonl

Pair = tuple[str, str]


def _hub(path: str, name: str | None = None) -> Any:
    import datasets

    try:
        return datasets.load_dataset(path, name, split="train")
    except Exception as error:
        raise ConfigurationError(
            f"dataset {path!r} cannot be loaded ({error}); use dataset=example or dataset=<file>.jsonl"
        ) from error


def load_pairs(dataset: str, domain: str, toolalpaca_data_path: str | None) -> list[Pair]:
    """(question, golden answer) of sciknoweval, toolalpaca (a saved Arrow folder), example, or a JSONL file."""
    if dataset == "sciknoweval":
        rows = _hub("hicai-zju/SciKnowEval")
        return [(str(r["question"]), str(r["answer"])) for r in rows if r.get("domain") == domain and r.get("answer")]
    if dataset == "toolalpaca":
        if toolalpaca_data_path is None:
            raise ConfigurationError("dataset=toolalpaca needs toolalpaca_data_path=<folder saved by datasets>")
        import datasets

        rows = datasets.load_from_disk(toolalpaca_data_path)
        return [(str(row["prompt"]), str(row["golden_response"])) for row in rows]
    path = entry.example_data("conversations.jsonl") if dataset == "example" else dataset
    if not path.endswith(".jsonl"):
        raise ConfigurationError(
            f"dataset={dataset!r} is unknown; use sciknoweval, toolalpaca, example or a JSONL path"
        )
    pairs = []
    for row in read_jsonl(path):
        messages = [m for m in conversation_from_row(row, where=path) if m["role"] != "system"]
        pairs.append((str(messages[0]["content"]), str(messages[1]["content"])))
    return pairs


class PairProvider:
    """Batches of pairs in a random order."""

    def __init__(self, pairs: list[Pair], batch_size: int, group_size: int, renderer: Renderer, seed: int = 0) -> None:
        order = np.random.default_rng(seed).permutation(len(pairs))
        self.pairs = [pairs[int(i)] for i in order]
        self.batch_size, self.group_size, self.renderer = batch_size, group_size, renderer

    def __len__(self) -> int:
        return len(self.pairs) // self.batch_size

    def get_batch(self, index: int) -> tuple[Sequence[EnvGroupBuilder], Sequence[str], Sequence[str]]:
        """Builders, questions, golden answers."""
        rows = self.pairs[index * self.batch_size : (index + 1) * self.batch_size]
        questions = [question for question, _ in rows]
        builders = [
            ProblemGroupBuilder(partial(PromptOnlyEnv, question, self.renderer), self.group_size, "sdft")
            for question in questions
        ]
        return builders, questions, [answer for _, answer in rows]
