"""What an evaluation during training looks like: a client in, numbers out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import tinker


class TrainingClientEvaluator(ABC):
    """Evaluates through the training client."""

    @abstractmethod
    async def __call__(self, training_client: tinker.TrainingClient) -> dict[str, float]:
        """Metrics."""


class SamplingClientEvaluator(ABC):
    """Evaluates through a sampling client."""

    @abstractmethod
    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        """Metrics."""


Evaluator: TypeAlias = TrainingClientEvaluator | SamplingClientEvaluator
EvaluatorBuilder: TypeAlias = Callable[[], Evaluator]
SamplingClientEvaluatorBuilder: TypeAlias = Callable[[], SamplingClientEvaluator]
