"""Datasets of comparisons."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chz

import tinker
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.preference.types import (
    Comparison,
    ComparisonRenderer,
    ComparisonRendererFromChatRenderer,
    LabeledComparison,
)
from tinker_cookbook.supervised.common import datum_from_model_input_weights
from tinker_cookbook.supervised.data import SupervisedDatasetFromList, conversation_from_row
from tinker_cookbook.supervised.types import ChatDatasetBuilder, SupervisedDataset
from tinker_cookbook.utils.file_utils import read_jsonl

logger = logging.getLogger(__name__)


@chz.chz
class ComparisonDatasetBuilder:
    """Where comparisons come from. ``swap``: completions of training rows are exchanged at random."""

    swap: bool = False

    def get_train_and_test_datasets(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]] | None]:
        """Raw rows."""
        raise NotImplementedError

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        """A row as a comparison; None to skip it."""
        raise NotImplementedError

    def get_labeled_comparisons(self) -> tuple[list[LabeledComparison], list[LabeledComparison] | None]:
        """All comparisons, training and held out."""
        train, test = self.get_train_and_test_datasets()
        rng = random.Random(0)

        def convert(rows: Sequence[dict[str, Any]], swap: bool) -> list[LabeledComparison]:
            found = [self.example_to_labeled_comparison(row) for row in rows]
            kept = [comparison for comparison in found if comparison is not None]
            if len(kept) < len(found):
                logger.info("%d of %d comparisons skipped", len(found) - len(kept), len(found))
            return [comparison.swap() if swap and rng.random() < 0.5 else comparison for comparison in kept]

        return convert(train, self.swap), convert(test, False) if test is not None else None


@chz.chz
class ChatDatasetBuilderFromComparisons(ChatDatasetBuilder):
    """Training data of a comparison policy (reward model)."""

    comparison_builder: ComparisonDatasetBuilder
    swap: bool = False

    @property
    def comparison_renderer(self) -> ComparisonRenderer:
        """Comparisons to tokens."""
        return ComparisonRendererFromChatRenderer(self.renderer)

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        builder = chz.replace(self.comparison_builder, swap=self.swap)
        train, test = builder.get_labeled_comparisons()
        renderer, common = self.comparison_renderer, self.common_config

        def to_data(labeled: LabeledComparison) -> list[tinker.Datum]:
            model_input, weights = renderer.to_model_input_weights(labeled)
            if common.max_length is not None and model_input.length > common.max_length:
                return []  # the label stands at the end: cutting would leave nothing to learn
            return [datum_from_model_input_weights(model_input, weights, None, reduction="none")]

        held_out = SupervisedDatasetFromList(test, len(test), to_data, shuffle=False) if test else None
        return SupervisedDatasetFromList(train, common.batch_size, to_data), held_out


@chz.chz
class ComparisonBuilderFromJsonl(ComparisonDatasetBuilder):
    """JSONL rows ``{"comparison": {prompt_conversation, completion_A, completion_B}, "label": "A"|"B"|"Tie"}``."""

    train_path: str
    test_path: str | None = None

    def get_train_and_test_datasets(self) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]] | None]:
        for path in filter(None, (self.train_path, self.test_path)):
            if not Path(path).expanduser().is_file():
                raise ConfigurationError(f"comparison file {path!r} does not exist")
        return read_jsonl(self.train_path), read_jsonl(self.test_path) if self.test_path else None

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        comparison, label = example.get("comparison"), example.get("label")
        if not isinstance(comparison, dict) or label not in ("A", "B", "Tie"):
            raise DataFormatError(f"row needs 'comparison' and 'label' (A, B or Tie); fields: {sorted(example)}")
        parts = [
            conversation_from_row(comparison, field)
            for field in ("prompt_conversation", "completion_A", "completion_B")
        ]
        return LabeledComparison(Comparison(*parts), label)
