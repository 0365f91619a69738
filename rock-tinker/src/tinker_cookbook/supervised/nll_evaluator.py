"""Negative log likelihood of held-out data."""

from __future__ import annotations

import asyncio

import numpy as np

import tinker
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator, TrainingClientEvaluator
from tinker_cookbook.rl.metrics import full_sequence
from tinker_cookbook.supervised.common import compute_bpb, compute_mean_nll
from tinker_cookbook.supervised.types import SupervisedDataset
from tinker_cookbook.tokenizer_utils import Tokenizer


def _all_data(dataset: SupervisedDataset) -> list[tinker.Datum]:
    return [datum for index in range(len(dataset)) for datum in dataset.get_batch(index)]


def _metrics(
    name: str, data: list[tinker.Datum], logprobs: list[np.ndarray], tokenizer: Tokenizer | None
) -> dict[str, float]:
    weights = [datum.loss_fn_inputs["weights"] for datum in data]
    out = {f"{name}/nll": compute_mean_nll(logprobs, weights)}
    if tokenizer is not None:
        targets = [datum.loss_fn_inputs["target_tokens"] for datum in data]
        out[f"{name}/bpb"] = compute_bpb(logprobs, weights, targets, tokenizer)
    return out


class SamplerNLLEvaluator(SamplingClientEvaluator):
    """Through the logprobs of a sampler."""

    def __init__(self, data: list[tinker.Datum], name: str = "test", tokenizer: Tokenizer | None = None) -> None:
        self.data, self.name, self.tokenizer = data, name, tokenizer

    @classmethod
    def from_dataset(
        cls, dataset: SupervisedDataset, name: str = "test", tokenizer: Tokenizer | None = None
    ) -> SamplerNLLEvaluator:
        """Evaluator of all data of a dataset."""
        return cls(_all_data(dataset), name, tokenizer)

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        async def score(datum: tinker.Datum) -> np.ndarray:
            logprobs = await sampling_client.compute_logprobs(full_sequence(datum))
            return np.asarray([0.0 if value is None else value for value in logprobs[1:]])

        logprobs = list(await asyncio.gather(*(score(datum) for datum in self.data)))
        return _metrics(self.name, self.data, logprobs, self.tokenizer)


class NLLEvaluator(TrainingClientEvaluator):
    """Through the forward pass of the trainer: exact, and no weights need to be published."""

    def __init__(self, data: list[tinker.Datum], name: str = "test", tokenizer: Tokenizer | None = None) -> None:
        self.data, self.name, self.tokenizer = data, name, tokenizer

    @classmethod
    def from_dataset(
        cls, dataset: SupervisedDataset, name: str = "test", tokenizer: Tokenizer | None = None
    ) -> NLLEvaluator:
        """Evaluator of all data of a dataset."""
        return cls(_all_data(dataset), name, tokenizer)

    async def __call__(self, training_client: tinker.TrainingClient) -> dict[str, float]:
        result = await training_client.forward(self.data, "cross_entropy")
        logprobs = [np.asarray(output["logprobs"].to_numpy()) for output in result.loss_fn_outputs]
        return _metrics(self.name, self.data, logprobs, self.tokenizer)
