"""One training step: data from groups, calls to the trainer, results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import tinker
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl import metrics as rl_metrics
from tinker_cookbook.rl.advantages import AdvantageEstimator, estimate_advantages
from tinker_cookbook.rl.config import Config
from tinker_cookbook.rl.data_processing import assemble_training_data, without_mask
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.types import EnvGroupBuilder, TrajectoryGroup
from tinker_cookbook.utils import trace
from tinker_cookbook.utils.cost_estimation import TokenUsage
from tinker_cookbook.utils.misc_utils import split_list

if TYPE_CHECKING:
    import torch


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


async def read_results(submitted: SubmittedCalls, metrics: dict[str, Any] | None) -> list[np.ndarray]:
    """Wait for the calls. Returns the trainer's logprobs of each datum; server metrics go to ``optim/``."""
    logprobs_D: list[np.ndarray] = []
    for future in submitted.forward_backward:
        result = await future
        logprobs_D.extend(output["logprobs"].to_numpy() for output in result.loss_fn_outputs)
    for future in submitted.optim:
        result = await future
        if metrics is not None and getattr(result, "metrics", None):
            metrics.update({f"optim/{key}": value for key, value in result.metrics.items()})
    return logprobs_D


async def train_parts(
    data_D: list[tinker.Datum],
    training_client: tinker.TrainingClient,
    params: tinker.AdamParams,
    num_substeps: int,
    loss_fn: str,
    loss_fn_config: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
) -> list[np.ndarray]:
    """Split the data in ``num_substeps`` consecutive parts, with an optimizer step after each.

    Each part's calls are submitted before the results of the part before it are read. Returns the logprobs that the
    trainer gave each datum.
    """
    logprobs_D: list[np.ndarray] = []
    previous: SubmittedCalls | None = None
    for part in split_list(data_D, min(num_substeps, len(data_D))):
        submitted = submit(training_client, part, loss_fn, loss_fn_config, params)
        if previous is not None:
            logprobs_D += await read_results(previous, metrics)
        previous = submitted
    if previous is not None:
        logprobs_D += await read_results(previous, metrics)
    return logprobs_D


def submit(
    training_client: tinker.TrainingClient,
    data_D: list[tinker.Datum],
    loss_fn: str,
    loss_fn_config: dict[str, Any] | None,
    params: tinker.AdamParams | None,
) -> SubmittedCalls:
    """Submit the gradients of the data, if there are any, and the optimizer step, if there are parameters for one."""
    submitted = SubmittedCalls()
    if loss_fn == "stable_reinforce" and any(datum.model_input_spans is None for datum in data_D):
        raise ConfigurationError(
            "loss_fn=stable_reinforce needs data with provenance: every action with the sequence_id of its sample"
        )
    if data_D:
        sent = [without_mask(datum) for datum in data_D]
        config = dict(loss_fn_config) if loss_fn_config else None
        submitted.forward_backward.append(
            training_client.forward_backward(sent, cast(tinker.types.LossFnType, loss_fn), config)
        )
    if params is not None:
        submitted.optim.append(training_client.optim_step(params))
    return submitted


class GradientAccumulator:
    """Gradients that add up over minibatches until an optimizer step."""

    def __init__(self, training_client: tinker.TrainingClient, config: Config) -> None:
        self._client, self._config = training_client, config
        self.waiting = False
        """Whether there are gradients without a step."""

    @trace.scope
    async def add(self, data_D: list[tinker.Datum], step: bool, metrics: dict[str, Any]) -> list[np.ndarray]:
        """Add the gradients of the data, with a step after them if ``step``. Returns the trainer's logprobs of each datum."""
        config = self._config
        params = adam_params(config) if step and (data_D or self.waiting) else None
        submitted = submit(self._client, data_D, config.training_loss_fn(), config.loss_fn_config, params)
        self.waiting = params is None and (bool(data_D) or self.waiting)
        return await read_results(submitted, metrics)


@trace.scope
async def train_step(
    data_D: list[tinker.Datum],
    training_client: tinker.TrainingClient,
    learning_rate: float,
    num_substeps: int,
    loss_fn: str,
    loss_fn_config: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
) -> list[torch.Tensor]:
    """``num_substeps`` optimizer steps on consecutive parts of the data, with Adam, betas (0.9, 0.95) and eps 1e-8.

    Returns the logprobs that the trainer gave each datum. Needs torch.
    """
    import torch

    params = tinker.AdamParams(learning_rate=learning_rate, beta1=0.9, beta2=0.95, eps=1e-8)
    logprobs_D = await train_parts(data_D, training_client, params, num_substeps, loss_fn, loss_fn_config, metrics)
    return [torch.tensor(logprobs) for logprobs in logprobs_D]


async def training_data(
    trajectory_groups_P: list[TrajectoryGroup],
    kl_reference_client: tinker.SamplingClient | None,
    kl_penalty_coef: float,
    kl_discount_factor: float,
    include_provenance: bool = True,
    estimator: AdvantageEstimator = "mean_centered",
    gae_gamma: float = 1.0,
    gae_lambda: float = 1.0,
) -> tuple[list[tinker.Datum], dict[str, Any], TokenUsage]:
    """Advantages, data, and the penalty to the reference policy. Returns (data, metrics, tokens of the reference)."""
    advantages_P = [estimate_advantages(group, estimator, gae_gamma, gae_lambda) for group in trajectory_groups_P]
    data_D, _ = assemble_training_data(trajectory_groups_P, advantages_P, include_provenance)
    if kl_penalty_coef <= 0 or kl_reference_client is None or not data_D:
        return data_D, {}, TokenUsage()
    metrics, usage = await rl_metrics.incorporate_kl_penalty(
        data_D, kl_reference_client, kl_penalty_coef, kl_discount_factor
    )
    return data_D, dict(metrics), usage


@trace.scope
async def prepare_minibatch(
    env_group_builders_P: Sequence[EnvGroupBuilder],
    trajectory_groups_P: list[TrajectoryGroup],
    tokenizer: Any,
    kl_reference_client: tinker.SamplingClient | None,
    kl_penalty_coef: float,
    kl_discount_factor: float,
    include_provenance: bool = True,
) -> tuple[list[tinker.Datum], dict[str, Any], TokenUsage]:
    """Data of groups for a training step. Returns (data, metrics of the trajectories and of the penalty, tokens sampled and
    scored).

    ``tokenizer`` is not read: the reports of an iteration show the texts.
    """
    taglist_P = [builder.logging_tags() for builder in env_group_builders_P]
    metrics: dict[str, Any] = dict(compute_trajectory_metrics(trajectory_groups_P, taglist_P))
    data_D, kl_metrics, usage = await training_data(
        trajectory_groups_P, kl_reference_client, kl_penalty_coef, kl_discount_factor, include_provenance
    )
    return data_D, {**metrics, **kl_metrics}, rollout_usage(trajectory_groups_P) + usage


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
