"""After the optimizer: new weights for sampling, a checkpoint where one is due, and the metrics of a whole batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinker
from tinker_cookbook.checkpoint_utils import CheckpointManager
from tinker_cookbook.rl import metrics as rl_metrics
from tinker_cookbook.utils import trace
from tinker_cookbook.utils.cost_estimation import CostTracker, TokenUsage


@trace.scope
async def save_checkpoint_and_get_sampling_client(
    training_client: tinker.TrainingClient,
    checkpoint_mgr: CheckpointManager,
    i_batch: int,
    start_batch: int = 0,
    record_stability_info: bool = False,
    cost_tracker: CostTracker | None = None,
) -> tuple[tinker.SamplingClient, dict[str, Any]]:
    """A sampler with the weights as they are before batch ``i_batch``: at a checkpoint step the saved ones.

    Nothing is saved at ``start_batch``, where the run began. Returns (sampler, metrics); ``cost_tracker`` is not read: the
    running totals are part of the logged metrics.
    """
    if i_batch > start_batch:
        paths = await checkpoint_mgr.maybe_save_async(i_batch, {"batch": i_batch})
        if paths is not None and "sampler_path" in paths:
            client = await training_client.create_sampling_client(
                paths["sampler_path"], record_stability_info=record_stability_info
            )
            return client, {}
    client = await training_client.save_weights_and_get_sampling_client(record_stability_info=record_stability_info)
    return client, {}


@dataclass
class SamplingClientReuse:
    """Stay with a sampler when nobody samples for training any more (``rollout_workers_finished``), unless a checkpoint is due.

    ``reused`` says whether that was done.
    """

    sampling_client: tinker.SamplingClient
    rollout_workers_finished: asyncio.Event
    reused: bool = False


@trace.scope
async def compute_full_batch_metrics_and_get_sampling_client(
    training_client: tinker.TrainingClient,
    checkpoint_mgr: CheckpointManager,
    i_batch: int,
    data_D: list[tinker.Datum],
    training_logprobs_D: Sequence[Any],
    do_compute_post_kl: bool,
    record_stability_info: bool = False,
    usage: TokenUsage = TokenUsage(),
    cost_tracker: CostTracker | None = None,
    sampling_client_reuse: SamplingClientReuse | None = None,
) -> tuple[tinker.SamplingClient, dict[str, Any]]:
    """Close a batch: KL between sampler and trainer, checkpoint, new sampler, KL of the step, tokens.

    ``i_batch`` is the batch to train next. ``usage``: tokens of the batch so far. Returns (sampler for the next batch, metrics).
    """
    metrics: dict[str, Any] = {}
    if data_D and len(training_logprobs_D) == len(data_D):
        metrics.update(rl_metrics.compute_kl_sample_train(data_D, training_logprobs_D))
    reuse = sampling_client_reuse
    due = checkpoint_mgr.should_save_periodic(i_batch)
    if reuse is not None and reuse.rollout_workers_finished.is_set() and not due and not do_compute_post_kl:
        await checkpoint_mgr.maybe_save_rolling_async(i_batch, {"batch": i_batch})
        client, reuse.reused = reuse.sampling_client, True
    else:
        client, saved = await save_checkpoint_and_get_sampling_client(
            training_client,
            checkpoint_mgr,
            i_batch,
            record_stability_info=record_stability_info,
            cost_tracker=cost_tracker,
        )
        metrics.update(saved)
    if do_compute_post_kl and data_D:
        post_kl, scored = await rl_metrics.compute_post_kl(data_D, client)
        metrics.update(post_kl)
        usage = usage + scored
    if cost_tracker is not None:
        metrics.update(cost_tracker.record_step(usage))
    return client, metrics
