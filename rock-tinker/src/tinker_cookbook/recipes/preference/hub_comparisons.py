"""Comparisons from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl, ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, LabeledComparison
from tinker_cookbook.recipes import entry
from tinker_cookbook.renderers import Message


def _load(path: str, split: str) -> Any:
    import datasets

    try:
        return datasets.load_dataset(path, split=split)
    except Exception as error:
        raise ConfigurationError(
            f"dataset {path!r} cannot be loaded ({error}). Offline: run where ./{path} is a folder with the data, or give "
            "dataset=example or dataset=<file>.jsonl"
        ) from error


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
    """Helpful and harmless pairs; the first 1024 test rows are held out."""

    def get_train_and_test_datasets(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]] | None]:
        test = _load("Anthropic/hh-rlhf", "test")
        return list(_load("Anthropic/hh-rlhf", "train")), [test[i] for i in range(min(1024, len(test)))]

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
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
        return list(_load("nvidia/HelpSteer3", "train")), list(_load("nvidia/HelpSteer3", "validation"))

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        score = example["overall_preference"]
        if score == 0:
            return None
        answers = [[Message(role="assistant", content=example[key])] for key in ("response1", "response2")]
        return LabeledComparison(Comparison(list(example["context"]), *answers), "A" if score < 0 else "B")


@chz.chz
class UltraFeedbackComparisonBuilder(ComparisonDatasetBuilder):
    """UltraFeedback, binarised."""

    def get_train_and_test_datasets(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]] | None]:
        path = "HuggingFaceH4/ultrafeedback_binarized"
        return list(_load(path, "train_prefs")), list(_load(path, "test_prefs"))

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        chosen, rejected = example["chosen"], example["rejected"]
        return LabeledComparison(Comparison(list(chosen[:-1]), [chosen[-1]], [rejected[-1]]), "A")


def comparison_builder(dataset: str) -> ComparisonDatasetBuilder:
    """hhh, helpsteer3, ultrafeedback, example (comes with the package), or a JSONL file."""
    known = {
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
