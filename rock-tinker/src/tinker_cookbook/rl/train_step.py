"""One training step: data from groups, calls to the trainer, results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import tinker
from tinker_cookbook.rl import metrics as rl_metrics
from tinker_cookbook.rl.advantages import estimate_advantages
from tinker_cookbook.rl.config import Config
from tinker_cookbook.rl.data_processing import assemble_training_data, without_mask
from tinker_cookbook.rl.types import TrajectoryGroup
from tinker_cookbook.utils import trace
from tinker_cookbook.utils.cost_estimation import TokenUsage
from tinker_cookbook.utils.misc_utils import split_list


def adam_params(config: Config) -> tinker.AdamParams:
    """Optimizer parameters of a step; the learning rate is constant."""
    return tinker.AdamParams(
        learning_rate=config.learning_rate,
        beta1=config.adam_beta1,
        beta2=config.adam_beta2,
        eps=config.adam_eps,
        grad_clip_norm=config.grad_clip_norm,
    )


@dataclass
class SubmittedCalls:
    """Calls that are under way."""

    forward_backward: list[Any] = field(default_factory=list)
    optim: list[Any] = field(default_factory=list)


def loss_config(loss_fn_config: dict[str, Any] | None) -> dict[str, Any] | None:
    return dict(loss_fn_config) if loss_fn_config else None


async def read_results(submitted: SubmittedCalls, metrics: dict[str, Any] | None) -> list[Any]:
    """Wait for the calls. Returns the trainer's logprobs of each datum; server metrics go to ``optim/``."""
    logprobs_D: list[Any] = []
    for future in submitted.forward_backward:
        result = await future
        logprobs_D.extend(output["logprobs"].to_numpy() for output in result.loss_fn_outputs)
    for future in submitted.optim:
        result = await future
        if metrics is not None and getattr(result, "metrics", None):
            metrics.update({f"optim/{key}": value for key, value in result.metrics.items()})
    return logprobs_D


@trace.scope
async def train_step(
    data_D: list[tinker.Datum],
    training_client: tinker.TrainingClient,
    learning_rate: float,
    num_substeps: int = 1,
    loss_fn: str = "importance_sampling",
    loss_fn_config: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    optim_params: tinker.AdamParams | None = None,
) -> list[Any]:
    """Split the data in ``num_substeps`` consecutive parts, with an optimizer step after each.

    Each part's calls are submitted before the results of the part before it are read. Returns the logprobs that the
    trainer gave each datum. The optimizer is Adam with betas (0.9, 0.95) and eps 1e-8 unless ``optim_params`` is given.
    """
    params = optim_params or tinker.AdamParams(learning_rate=learning_rate, beta1=0.9, beta2=0.95, eps=1e-8)
    logprobs_D: list[Any] = []
    previous: SubmittedCalls | None = None
    for part in split_list(data_D, min(num_substeps, len(data_D))):
        sent = [without_mask(datum) for datum in part]
        submitted = SubmittedCalls(
            forward_backward=[
                training_client.forward_backward(
                    sent, cast(tinker.types.LossFnType, loss_fn), loss_config(loss_fn_config)
                )
            ],
            optim=[training_client.optim_step(params)],
        )
        if previous is not None:
            logprobs_D += await read_results(previous, metrics)
        previous = submitted
    if previous is not None:
        logprobs_D += await read_results(previous, metrics)
    return logprobs_D


@trace.scope
async def prepare_minibatch(
    trajectory_groups_P: list[TrajectoryGroup],
    config: Config,
    kl_reference_client: tinker.SamplingClient | None = None,
) -> tuple[list[tinker.Datum], dict[str, float]]:
    """Advantages, data, and the penalty to the reference policy. Returns (data, metrics)."""
    advantages_P = [
        estimate_advantages(group, config.advantage_estimator, config.gae_gamma, config.gae_lambda)
        for group in trajectory_groups_P
    ]
    data_D, _ = assemble_training_data(trajectory_groups_P, advantages_P, config.records_stability_info())
    metrics: dict[str, float] = {}
    if config.kl_penalty_coef > 0 and kl_reference_client is not None and data_D:
        metrics, _ = await rl_metrics.incorporate_kl_penalty(
            data_D, kl_reference_client, config.kl_penalty_coef, config.kl_discount_factor
        )
    return data_D, metrics


def rollout_usage(trajectory_groups: Sequence[TrajectoryGroup]) -> TokenUsage:
    """Tokens sampled and read."""
    turns = [turn for group in trajectory_groups for traj in group.trajectories_G for turn in traj.transitions]
    cached = sum(turn.ac.prompt_cache_hit_tokens for turn in turns)
    return TokenUsage(
        sampled=sum(len(turn.ac.tokens) for turn in turns),
        prefill_cached=cached,
        prefill_uncached=sum(turn.ob.length for turn in turns) - cached,
    )


def training_usage(data_D: Sequence[tinker.Datum]) -> TokenUsage:
    """Tokens trained on."""
    return TokenUsage(trained=sum(datum.model_input.length for datum in data_D))
