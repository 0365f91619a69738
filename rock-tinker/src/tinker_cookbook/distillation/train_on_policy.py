"""On-policy distillation: the student samples, and moves towards its teacher where it sampled.

advantage_t += −coef · mask_t · (student logprob − teacher logprob). Not centred; a discount γ > 0 first replaces the
term by its discounted future sum. Each dataset may have a teacher of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import chz
import numpy as np

import tinker
from tinker_cookbook.checkpoint_utils import CheckpointManager, CheckpointRecord
from tinker_cookbook.distillation.datasets import (
    CompositeDataset,
    CompositeDatasetBuilder,
    DistillationDatasetConfig,
    TaggedDataset,
    TaggedGroupBuilder,
    TeacherConfig,
)
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator, SamplingClientEvaluatorBuilder
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl import config as rl_config
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.rl.advantages import estimate_advantages
from tinker_cookbook.rl.batch_source import WrappedTrajectoryGroup
from tinker_cookbook.rl.config import LossFnType
from tinker_cookbook.rl.data_processing import assemble_training_data
from tinker_cookbook.rl.loop import TrainingLoop
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.metrics import (
    add_to_advantages,
    array,
    discounted_future_sum_vectorized,
    full_sequence,
    score_tokens,
)
from tinker_cookbook.rl.sampler_weights import compute_full_batch_metrics_and_get_sampling_client
from tinker_cookbook.rl.train_step import train_parts
from tinker_cookbook.rl.types import EnvGroupBuilder, TrajectoryGroup
from tinker_cookbook.stores.training_store import TrainingRunStore
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.utils import ml_log, trace
from tinker_cookbook.utils.config_fields import shared_values


@trace.scope
async def incorporate_kl_penalty(
    data_D: list[tinker.Datum],
    teacher_clients_D: Sequence[tinker.SamplingClient],
    dataset_indices_D: Sequence[int],
    kl_penalty_coef: float,
    kl_discount_factor: float,
) -> dict[str, float]:
    """Add the teacher term to the advantages in place. Returns ``teacher_kl`` and ``teacher_kl/dataset_<i>``."""

    async def score(datum: tinker.Datum, client: tinker.SamplingClient) -> np.ndarray:
        return (await score_tokens(client, [full_sequence(datum)]))[0]

    teacher_D = await asyncio.gather(
        *(score(datum, client) for datum, client in zip(data_D, teacher_clients_D, strict=True))
    )
    sums: dict[int, tuple[float, float]] = {}
    for datum, teacher, dataset in zip(data_D, teacher_D, dataset_indices_D, strict=True):
        mask = array(datum, "mask")
        difference = mask * (array(datum, "logprobs") - teacher)
        added = -kl_penalty_coef * difference
        if kl_discount_factor > 0:
            added = discounted_future_sum_vectorized(added, kl_discount_factor)
        add_to_advantages(datum, added)
        total, count = sums.get(dataset, (0.0, 0.0))
        sums[dataset] = (total + float(difference.sum()), count + float(mask.sum()))
    count = sum(c for _, c in sums.values())
    metrics = {"teacher_kl": sum(t for t, _ in sums.values()) / count if count else 0.0}
    metrics.update({f"teacher_kl/dataset_{i}": t / c if c else 0.0 for i, (t, c) in sorted(sums.items())})
    return metrics


@chz.chz
class Config:
    """One run of on-policy distillation."""

    learning_rate: float
    dataset_configs: list[DistillationDatasetConfig]
    model_name: str
    max_tokens: int
    log_path: str = chz.field(munger=lambda _, path: str(Path(path).expanduser()))
    recipe_name: str | None = None
    renderer_name: str | None = None
    temperature: float = 1.0
    compute_post_kl: bool = False
    evaluator_builders: list[SamplingClientEvaluatorBuilder] = chz.field(default_factory=list)
    lora_rank: int = 32
    kl_penalty_coef: float = 1.0
    kl_discount_factor: float = 0.0
    loss_fn: LossFnType = "importance_sampling"
    loss_fn_config: dict[str, Any] | None = None
    num_substeps: int = 1
    wandb_project: str | None = None
    wandb_name: str | None = None
    session_name: str | None = None
    base_url: str | None = None
    enable_trace: bool = False
    span_chart_every: int = 0
    eval_every: int = 20
    save_every: int = 20
    load_checkpoint_path: str | None = None
    max_steps: int | None = None
    sampling_seed: int | None = None

    @chz.validate
    def _check(self) -> None:
        if not self.dataset_configs:
            raise ConfigurationError("dataset_configs must name at least one dataset")


async def teacher_clients(
    service_client: tinker.ServiceClient, teachers: Sequence[TeacherConfig]
) -> list[tinker.SamplingClient]:
    """One client per teacher; equal teachers share one."""
    known: dict[tuple[str, str | None], tinker.SamplingClient] = {}
    for teacher in teachers:
        key = (teacher.base_model, teacher.load_checkpoint_path)
        if key in known:
            continue
        if teacher.load_checkpoint_path is not None:
            known[key] = await service_client.create_sampling_client(model_path=teacher.load_checkpoint_path)
        else:
            known[key] = await service_client.create_sampling_client(base_model=teacher.base_model)
    return [known[(teacher.base_model, teacher.load_checkpoint_path)] for teacher in teachers]


async def distillation_data(
    trajectory_groups_P: list[TrajectoryGroup],
    dataset_indices_P: Sequence[int],
    teacher_clients: Sequence[tinker.SamplingClient],
    kl_penalty_coef: float,
    kl_discount_factor: float,
) -> tuple[list[tinker.Datum], dict[str, float]]:
    """Data of groups, whose advantages are those of the rewards and the teacher term; and the metrics of the term."""
    advantages_P = [estimate_advantages(group) for group in trajectory_groups_P]
    data_D, metadata_D = assemble_training_data(trajectory_groups_P, advantages_P, include_provenance=False)
    datasets_D = [dataset_indices_P[row["group_idx"]] for row in metadata_D]
    teachers_D = [teacher_clients[i] for i in datasets_D]
    metrics = await incorporate_kl_penalty(data_D, teachers_D, datasets_D, kl_penalty_coef, kl_discount_factor)
    return data_D, metrics


@trace.scope
async def prepare_minibatch(
    env_group_builders_P: Sequence[EnvGroupBuilder],
    trajectory_groups_P: list[TrajectoryGroup],
    tokenizer: Tokenizer,
    dataset_indices_P: list[int],
    teacher_clients: list[tinker.SamplingClient],
    kl_penalty_coef: float,
    kl_discount_factor: float,
) -> tuple[list[tinker.Datum], dict[str, Any]]:
    """Data of groups with the teacher term; ``dataset_indices_P`` says which teacher each group has. Returns (data, metrics of
    the trajectories and of the term). ``tokenizer`` is not read."""
    taglist_P = [builder.logging_tags() for builder in env_group_builders_P]
    metrics: dict[str, Any] = dict(compute_trajectory_metrics(trajectory_groups_P, taglist_P))
    data_D, kl_metrics = await distillation_data(
        trajectory_groups_P, dataset_indices_P, teacher_clients, kl_penalty_coef, kl_discount_factor
    )
    return data_D, {**metrics, **kl_metrics}


@trace.scope
async def do_train_step_and_get_sampling_client(
    config: Config,
    i_batch: int,
    training_client: tinker.TrainingClient,
    checkpoint_mgr: CheckpointManager,
    service_client: tinker.ServiceClient,
    tokenizer: Tokenizer,
    env_group_builders_P: Sequence[EnvGroupBuilder],
    trajectory_groups_P: list[TrajectoryGroup],
    dataset_indices_P: list[int],
    teacher_clients: list[tinker.SamplingClient],
    store: TrainingRunStore | None = None,
) -> tuple[tinker.SamplingClient, dict[str, Any]]:
    """Train on the groups of batch ``i_batch``. Returns (sampler for the next batch, metrics). ``service_client`` and ``store``
    are not read."""
    data_D, metrics = await prepare_minibatch(
        env_group_builders_P,
        trajectory_groups_P,
        tokenizer,
        dataset_indices_P,
        teacher_clients,
        config.kl_penalty_coef,
        config.kl_discount_factor,
    )
    params = tinker.AdamParams(learning_rate=config.learning_rate, beta1=0.9, beta2=0.95, eps=1e-8)
    logprobs_D = await train_parts(
        data_D, training_client, params, config.num_substeps, config.loss_fn, config.loss_fn_config, metrics
    )
    sampler, closing = await compute_full_batch_metrics_and_get_sampling_client(
        training_client, checkpoint_mgr, i_batch + 1, data_D, logprobs_D, config.compute_post_kl
    )
    return sampler, {**metrics, **closing}


class OnPolicyDistillationLoop(TrainingLoop):
    """RL loop whose advantages get the teacher term."""

    def __init__(self, *args: Any, distillation: Config, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.distillation = distillation
        self.teachers: list[tinker.SamplingClient] = []

    async def setup(self, service_client: tinker.ServiceClient, resume: CheckpointRecord | None) -> None:
        configs = [config.teacher_config for config in self.distillation.dataset_configs]
        self.teachers = await teacher_clients(service_client, configs)

    async def prepare(self, groups: Sequence[WrappedTrajectoryGroup]) -> tuple[list[tinker.Datum], dict[str, float]]:
        return await distillation_data(
            [group.trajectory_group for group in groups],
            [dataset_index(group) for group in groups],
            self.teachers,
            self.distillation.kl_penalty_coef,
            self.distillation.kl_discount_factor,
        )


def dataset_index(group: WrappedTrajectoryGroup) -> int:
    """Number of the dataset that a group comes from."""
    builder = group.env_group_builder
    if not isinstance(builder, TaggedGroupBuilder):
        raise ConfigurationError("distillation needs groups of a CompositeDataset")
    return builder.dataset_index


def to_rl_config(config: Any, dataset_builder: Any) -> rl_config.Config:
    """The part of a configuration that the RL loop reads."""
    left_out = ("kl_penalty_coef", "kl_discount_factor", "dataset_builder")
    values = {key: value for key, value in shared_values(config, rl_config.Config).items() if key not in left_out}
    return rl_config.Config(dataset_builder=dataset_builder, **values)


async def do_sync_training(
    start_batch: int,
    end_batch: int,
    num_batches: int,
    config: Config,
    training_client: tinker.TrainingClient,
    checkpoint_mgr: CheckpointManager,
    service_client: tinker.ServiceClient,
    evaluators: list[SamplingClientEvaluator],
    dataset: CompositeDataset,
    teacher_clients: list[tinker.SamplingClient],
    ml_logger: ml_log.Logger,
    tokenizer: Tokenizer,
) -> None:
    """Train on the batches ``start_batch``..``end_batch``; the final checkpoint is left to the caller. ``service_client`` is
    not read."""
    rl = to_rl_config(config, CompositeDatasetBuilder(configs=config.dataset_configs))
    loop = OnPolicyDistillationLoop(
        rl,
        training_client,
        checkpoint_mgr,
        None,
        evaluators,
        TaggedDataset(dataset),
        ml_logger,
        tokenizer,
        mode="sync",
        num_batches=num_batches,
        distillation=config,
    )
    loop.teachers = list(teacher_clients)
    await loop.train(start_batch, end_batch)


async def main(config: Config, rollout_executor: Executor | None = None) -> None:
    """Run on-policy distillation; an existing ``log_path`` with a checkpoint is resumed."""
    rl = to_rl_config(config, CompositeDatasetBuilder(configs=config.dataset_configs))
    await rl_train.run_loop(rl, OnPolicyDistillationLoop, rollout_executor, logged_config=config, distillation=config)
