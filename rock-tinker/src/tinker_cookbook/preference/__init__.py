"""Learning from comparisons: DPO, reward models, comparison policies."""

from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, LabeledComparison

__all__ = [
    "Comparison",
    "ComparisonDatasetBuilder",
    "LabeledComparison",
]
