"""The seam to the Tinker SDK: sampling, training, publishing and reference logprobs of one run."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tinker
from tinker_cookbook.swe.policy import Completion
from tinker_cookbook.swe.sequences import TokenSequence

log = logging.getLogger(__name__)

# The policy-gradient losses that take target_tokens, logprobs and advantages.
LossName = Literal["ppo", "importance_sampling", "cispo"]


class TinkerSampler:
    """A TokenSampler over a `tinker.SamplingClient`.

    Args:
        client: of fixed weights.
        end_text: the model's end token as text; it joins the stop strings of a request, which would replace it.
    """

    def __init__(self, client: tinker.SamplingClient, end_text: str) -> None:
        self.client = client
        self._end_text = end_text

    async def sample(
        self,
        prompt: tuple[int, ...],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
        stop: tuple[str, ...],
    ) -> Completion:
        params = tinker.SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=[*stop, self._end_text] if stop else None,
        )
        response = await self.client.sample(
            prompt=tinker.ModelInput.from_ints(list(prompt)), num_samples=1, sampling_params=params
        )
        sequence = response.sequences[0]
        return Completion(
            tokens=tuple(int(token) for token in sequence.tokens),
            logprobs=tuple(float(value) for value in sequence.logprobs or ()),
            stop_reason=str(sequence.stop_reason),
        )


async def reference_logprobs(client: tinker.SamplingClient, sequences: Sequence[TokenSequence]) -> list[list[float]]:
    """Logprobs of each sequence's tokens under other weights, at temperature 1; the first token of each counts as 0."""
    futures = [client.compute_logprobs(tinker.ModelInput.from_ints(sequence.tokens)) for sequence in sequences]
    return [[0.0 if value is None else float(value) for value in await future] for future in futures]


@dataclass(frozen=True)
class TrainReport:
    """Metrics of one update. `train_elapsed` is seconds for both calls."""

    fwdbwd_metrics: dict[str, float]
    optim_metrics: dict[str, float]
    train_elapsed: float


async def train(
    client: tinker.TrainingClient,
    data: list[tinker.Datum],
    *,
    loss_fn: LossName,
    loss_fn_config: dict[str, Any] | None,
    learning_rate: float,
) -> TrainReport:
    """One forward_backward and one optim_step, with log lines after each.

    Where the server's metrics do not say how far trainer and sampler are apart on the sampled tokens, that is added: with q
    the sampler's and p the trainer's logprob, `kl_sample_train_v1:mean` = mean(q − p) and `kl_sample_train_v2:mean` =
    ½·mean((q − p)²).
    """
    started = time.monotonic()
    result = await client.forward_backward(data, loss_fn=loss_fn, loss_fn_config=loss_fn_config)
    fwdbwd = {key: float(value) for key, value in result.metrics.items()}
    if "kl_sample_train_v2:mean" not in fwdbwd:
        fwdbwd.update(_gap_metrics(data, result.loss_fn_outputs))
    log.info("forward_backward done: %d datums, %.1f s, %s", len(data), time.monotonic() - started, _short(fwdbwd))
    stepped = time.monotonic()
    step = await client.optim_step(
        tinker.AdamParams(learning_rate=learning_rate, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0)
    )
    optim = {key: float(value) for key, value in (step.metrics or {}).items()}
    log.info("optim_step done: learning rate %g, %.1f s, %s", learning_rate, time.monotonic() - stepped, _short(optim))
    return TrainReport(fwdbwd, optim, round(time.monotonic() - started, 3))


def _gap_metrics(data: list[tinker.Datum], outputs: Sequence[Any]) -> dict[str, float]:
    gaps: list[float] = []
    for item, output in zip(data, outputs, strict=True):
        trained = output["logprobs"].tolist()
        sampled = item.loss_fn_inputs["logprobs"].tolist()
        advantages = item.loss_fn_inputs["advantages"].tolist()
        # A sampled token has a logprob below 0; positions of the prompt carry 0 in both.
        gaps += [q - p for q, p, a in zip(sampled, trained, advantages, strict=True) if q != 0.0 or a != 0.0]
    if not gaps:
        return {}
    return {
        "kl_sample_train_v1:mean": sum(gaps) / len(gaps),
        "kl_sample_train_v2:mean": 0.5 * sum(gap * gap for gap in gaps) / len(gaps),
    }


def _short(metrics: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:.5g}" for key, value in sorted(metrics.items())) or "no metrics"
