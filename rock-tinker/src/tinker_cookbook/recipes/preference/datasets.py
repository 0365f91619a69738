"""Comparisons from the hub."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl, ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, LabeledComparison
from tinker_cookbook.recipes import entry
from tinker_cookbook.renderers import Message

_HELD_OUT = 1024


def _load(path: str, split: str, name: str | None = None) -> Any:
    import datasets

    try:
        return datasets.load_dataset(path, name, split=split)
    except Exception as error:
        raise ConfigurationError(
            f"dataset {path!r} cannot be loaded ({error}). Offline: run where ./{path} is a folder with the data, or give "
            "dataset=example or dataset=<file>.jsonl"
        ) from error


def _load_and_hold_out(path: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The training split in a fixed random order, without and of the first 1024 rows."""
    rows = list(_load(path, "train"))
    random.Random(0).shuffle(rows)
    return rows[_HELD_OUT:], rows[:_HELD_OUT]


def _pair(prompt: list[Message], first: str, second: str, label: Literal["A", "B", "Tie"] = "A") -> LabeledComparison:
    answers = [[Message(role="assistant", content=text)] for text in (first, second)]
    return LabeledComparison(Comparison(prompt, *answers), label)


def parse_hh_conversation(text: str) -> list[Message]:
    """``\\n\\nHuman: ...\\n\\nAssistant: ...`` as messages."""
    messages = []
    for turn in text.split("\n\n"):
        for marker, role in (("Human:", "user"), ("Assistant:", "assistant")):
            if turn.startswith(marker):
                messages.append(Message(role=role, content=turn[len(marker) :].strip()))
                break
        else:
            if messages and turn:
                messages[-1]["content"] = f"{messages[-1]['content']}\n\n{turn}"
    return messages


@chz.chz
class HHHComparisonBuilder(ComparisonDatasetBuilder):
    """Helpful and harmless pairs; the first ``test_size`` rows of the test split are held out."""

    test_size: int = _HELD_OUT

    def get_train_and_test_datasets(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]] | None]:
        test = _load("Anthropic/hh-rlhf", "test")
        return list(_load("Anthropic/hh-rlhf", "train")), [test[i] for i in range(min(self.test_size, len(test)))]

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        return hhh_example_to_comparison(example)


def hhh_example_to_comparison(example: dict[str, str]) -> LabeledComparison | None:
    """A row of ``chosen`` and ``rejected``; None where the conversations differ before the last answer or not at all."""
    chosen, rejected = parse_hh_conversation(example["chosen"]), parse_hh_conversation(example["rejected"])
    if len(chosen) != len(rejected) or not chosen or chosen[:-1] != rejected[:-1]:
        return None
    if chosen[-1]["role"] != "assistant" or chosen[-1] == rejected[-1]:
        return None
    return LabeledComparison(Comparison(chosen[:-1], [chosen[-1]], [rejected[-1]]), "A")


@chz.chz
class HelpSteer3ComparisonBuilder(ComparisonDatasetBuilder):
    """HelpSteer3 preferences."""

    def get_train_and_test_datasets(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]] | None]:
        train, test = (list(_load("nvidia/HelpSteer3", split, "preference")) for split in ("train", "validation"))
        return train, test

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        score = example["overall_preference"]
        if score == 0:
            return None
        label: Literal["A", "B"] = "A" if score < 0 else "B"
        return _pair(list(example["context"]), example["response1"], example["response2"], label)


@chz.chz
class HelpSteer2ComparisonBuilder(ComparisonDatasetBuilder):
    """HelpSteer2: of the answers to a prompt, the most against the least helpful one."""

    def get_train_and_test_datasets(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]] | None]:
        train, test = (self._pairs(_load("nvidia/HelpSteer2", split)) for split in ("train", "validation"))
        return train, test

    @staticmethod
    def _pairs(rows: Any) -> list[dict[str, Any]]:
        by_prompt: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_prompt.setdefault(row["prompt"], []).append(row)
        out = []
        for prompt, answers in by_prompt.items():
            ranked = sorted(answers, key=lambda row: float(row["helpfulness"]))
            difference = ranked[-1]["helpfulness"] - ranked[0]["helpfulness"]
            if difference > 0:
                out.append(
                    {
                        "prompt": prompt,
                        "chosen_response": ranked[-1]["response"],
                        "rejected_response": ranked[0]["response"],
                        "helpfulness_diff": difference,
                    }
                )
        return out

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        prompt = [Message(role="user", content=example["prompt"])]
        return _pair(prompt, example["chosen_response"], example["rejected_response"])


@chz.chz
class UltraFeedbackComparisonBuilder(ComparisonDatasetBuilder):
    """UltraFeedback, binarised; 1024 rows are held out."""

    def get_train_and_test_datasets(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]] | None]:
        return _load_and_hold_out("argilla/ultrafeedback-binarized-preferences")

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        prompt = [Message(role="user", content=example["instruction"])]
        return _pair(prompt, example["chosen_response"], example["rejected_response"])


@chz.chz
class Tulu38BComparisonBuilder(ComparisonDatasetBuilder):
    """The preference mixture of Tulu 3 8B; 1024 rows are held out."""

    def get_train_and_test_datasets(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]] | None]:
        return _load_and_hold_out("allenai/llama-3.1-tulu-3-8b-preference-mixture")

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        chosen, rejected = example["chosen"], example["rejected"]
        if chosen[:-1] != rejected[:-1]:
            return None
        return LabeledComparison(Comparison(list(chosen[:-1]), [chosen[-1]], [rejected[-1]]), "A")


@chz.chz
class ArenaComparisonBuilder(ComparisonDatasetBuilder):
    """Votes of LMArena on whole conversations; ties of any kind are ties. 1024 rows are held out."""

    def get_train_and_test_datasets(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]] | None]:
        return _load_and_hold_out("lmarena-ai/arena-human-preference-140k")

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        first, second = (_arena_messages(example[key]) for key in ("conversation_a", "conversation_b"))
        if not first or not second or first[0] != second[0]:
            return None
        labels: dict[str, Literal["A", "B"]] = {"model_a": "A", "model_b": "B"}
        return LabeledComparison(Comparison(first[:1], first[1:], second[1:]), labels.get(example["winner"], "Tie"))


def _arena_messages(conversation: Sequence[dict[str, Any]]) -> list[Message]:
    """Messages with plain text; those with other parts make the conversation unusable (empty list)."""
    messages = []
    for turn in conversation:
        content = turn["content"]
        if not isinstance(content, str):
            if any(part.get("type") != "text" for part in content):
                return []
            content = "".join(part["text"] for part in content)
        messages.append(Message(role=turn["role"], content=content))
    return messages


def comparison_builder(dataset: str) -> ComparisonDatasetBuilder:
    """hhh, helpsteer3, ultrafeedback, example (comes with the package), or a JSONL file."""
    known: dict[str, type[ComparisonDatasetBuilder]] = {
        "hhh": HHHComparisonBuilder,
        "helpsteer3": HelpSteer3ComparisonBuilder,
        "ultrafeedback": UltraFeedbackComparisonBuilder,
    }
    if dataset in known:
        return known[dataset]()
    path = entry.example_data("comparisons.jsonl") if dataset == "example" else dataset
    if not path.endswith(".jsonl"):
        raise ConfigurationError(
            f"dataset={dataset!r} is unknown; use {', '.join(known)}, example or a path that ends in .jsonl"
        )
    return ComparisonBuilderFromJsonl(train_path=path)
