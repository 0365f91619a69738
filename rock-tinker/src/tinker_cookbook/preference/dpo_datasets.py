"""Comparisons as data for DPO: chosen and rejected alternate."""

from __future__ import annotations

import chz

import tinker
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import LabeledComparison
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.supervised.common import datum_from_model_input_weights
from tinker_cookbook.supervised.data import SupervisedDatasetFromList
from tinker_cookbook.supervised.types import ChatDatasetBuilder, SupervisedDataset


@chz.chz
class DPODatasetBuilderFromComparisons(ChatDatasetBuilder):
    """``batch_size`` comparisons give twice as many data; ties are skipped."""

    comparison_builder: ComparisonDatasetBuilder

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        train, test = self.comparison_builder.get_labeled_comparisons()
        renderer, common = self.renderer, self.common_config
        mode = common.train_on_what or TrainOnWhat.LAST_ASSISTANT_MESSAGE

        def to_data(labeled: LabeledComparison) -> list[tinker.Datum]:
            comparison = labeled.comparison if labeled.label == "A" else labeled.comparison.swap()
            pair = []
            for completion in (comparison.completion_A, comparison.completion_B):
                example = renderer.build_supervised_example([*comparison.prompt_conversation, *completion], mode)
                pair.append(datum_from_model_input_weights(*example, common.max_length, reduction="none"))
            return pair

        decided = [labeled for labeled in train if labeled.label != "Tie"]
        held = [labeled for labeled in test or [] if labeled.label != "Tie"]
        held_out = SupervisedDatasetFromList(held, len(held), to_data, shuffle=False) if held else None
        return SupervisedDatasetFromList(decided, common.batch_size, to_data), held_out
