"""Off-policy distillation: given texts, the student learns the teacher's top-K distribution at every trained token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chz
import numpy as np

import tinker
from tinker_cookbook.checkpoint_utils import DEFAULT_TTL_SECONDS, CheckpointRecord
from tinker_cookbook.distillation.datasets import TeacherConfig
from tinker_cookbook.distillation.top_k import gather_limited, mean_entropy, soft_target_datum, top_k_rows
from tinker_cookbook.distillation.train_on_policy import teacher_clients
from tinker_cookbook.eval.evaluators import EvaluatorBuilder
from tinker_cookbook.rl.metrics import full_sequence
from tinker_cookbook.supervised.loop import SubmittedBatch, SupervisedLoop
from tinker_cookbook.supervised.train import run_supervised
from tinker_cookbook.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from tinker_cookbook.utils.config_fields import shared_values
from tinker_cookbook.utils.lr_scheduling import LRSchedule


@chz.chz
class DatasetWithTeacher:
    """Texts, their teacher, and their share of the batches."""

    dataset_builder: SupervisedDatasetBuilder
    teacher_config: TeacherConfig
    weight: float = 1.0


class TeacherMixture(SupervisedDataset):
    """Batches of several datasets in turn, by weight. Every datum remembers its teacher."""

    def __init__(self, datasets: list[SupervisedDataset], weights: list[float]) -> None:
        self._datasets = datasets
        total = min(int(len(d) * sum(weights) / w) for d, w in zip(datasets, weights, strict=True))
        # The dataset that lags behind its share most comes next.
        taken = [0] * len(datasets)
        self._schedule: list[tuple[int, int]] = []
        for step in range(1, total + 1):
            lag = [w / sum(weights) * step - t for w, t in zip(weights, taken, strict=True)]
            open_ones = [i for i in range(len(datasets)) if taken[i] < len(datasets[i])]
            if not open_ones:
                break
            chosen = max(open_ones, key=lambda i: lag[i])
            self._schedule.append((chosen, taken[chosen]))
            taken[chosen] += 1

    def __len__(self) -> int:
        return len(self._schedule)

    def set_epoch(self, seed: int = 0) -> None:
        for dataset in self._datasets:
            dataset.set_epoch(seed)

    def teacher_of(self, index: int) -> int:
        """Number of the dataset of a batch."""
        return self._schedule[index][0]

    def get_batch(self, index: int) -> list[tinker.Datum]:
        dataset, position = self._schedule[index]
        self.current_teacher = dataset
        return self._datasets[dataset].get_batch(position)


@chz.chz
class _MixtureBuilder(SupervisedDatasetBuilder):
    configs: list[DatasetWithTeacher]

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        built = [config.dataset_builder() for config in self.configs]
        tests = [test for _, test in built if test is not None]
        mixture = TeacherMixture([train for train, _ in built], [config.weight for config in self.configs])
        return mixture, tests[0] if tests else None


@chz.chz
class Config:
    """One run of off-policy distillation. The dataset builders know the batch size."""

    learning_rate: float
    dataset_configs: list[DatasetWithTeacher]
    model_name: str
    log_path: str = chz.field(munger=lambda _, path: str(Path(path).expanduser()))
    recipe_name: str | None = None
    renderer_name: str | None = None
    lora_rank: int = 32
    n_teacher_targets: int = 20
    teacher_concurrency: int = 64
    save_every: int = 10
    eval_every: int = 20
    max_steps: int | None = None
    load_checkpoint_path: str | None = None
    wandb_project: str | None = None
    wandb_name: str | None = None
    session_name: str | None = None
    base_url: str | None = None
    ttl_seconds: int | None = DEFAULT_TTL_SECONDS
    enable_trace: bool = False
    evaluator_builders: list[EvaluatorBuilder] = chz.field(default_factory=list)
    num_epochs: int = 1
    lr_schedule: LRSchedule = "constant"
    seed: int | None = None


class OffPolicyDistillationLoop(SupervisedLoop):
    """Supervised loop with the teacher's soft targets."""

    teachers: list[tinker.SamplingClient]
    config: Config

    async def setup(self, service_client: tinker.ServiceClient, config: Any, resume: CheckpointRecord | None) -> None:
        self.config = config.distillation
        self.teachers = await teacher_clients(
            service_client, [item.teacher_config for item in self.config.dataset_configs]
        )

    async def prepare(self, data: list[tinker.Datum]) -> list[tinker.Datum]:
        assert isinstance(self.dataset, TeacherMixture)
        teacher, k = self.teachers[self.dataset.current_teacher], self.config.n_teacher_targets

        async def soften(datum: tinker.Datum) -> tinker.Datum:
            rows = await top_k_rows(teacher, full_sequence(datum), k)
            weights = np.asarray(datum.loss_fn_inputs["weights"].to_numpy())
            return soft_target_datum(datum.model_input, rows, weights, k)

        return await gather_limited([soften(datum) for datum in data], self.config.teacher_concurrency)

    def read(self, batch: SubmittedBatch, result: Any) -> dict[str, float]:
        weights = [np.asarray(datum.loss_fn_inputs["weights"].to_numpy()) for datum in batch.data]
        logprobs = [
            np.asarray(out["logprobs"].to_numpy()).reshape(w.shape)
            for out, w in zip(result.loss_fn_outputs, weights, strict=True)
        ]
        total = sum(float(w.sum()) for w in weights) or 1.0
        cross_entropy = -sum(float((lp * w).sum()) for lp, w in zip(logprobs, weights, strict=True)) / total
        entropy = float(np.mean([mean_entropy(w) for w in weights]))
        return {
            "num_loss_tokens": float(sum(int((w.sum(axis=1) > 0).sum()) for w in weights)),
            "train_mean_nll": cross_entropy,
            "distill/cross_entropy": cross_entropy,
            "distill/teacher_entropy": entropy,
            "distill/forward_kl": cross_entropy - entropy,
        }


@chz.chz
class _LoopConfig:
    """What the shared set-up reads."""

    distillation: Config
    dataset_builder: SupervisedDatasetBuilder
    log_path: str
    model_name: str
    learning_rate: float
    lr_schedule: LRSchedule
    num_epochs: int
    recipe_name: str | None
    renderer_name: str | None
    lora_rank: int
    save_every: int
    eval_every: int
    max_steps: int | None
    load_checkpoint_path: str | None
    wandb_project: str | None
    wandb_name: str | None
    session_name: str | None
    base_url: str | None
    ttl_seconds: int | None
    enable_trace: bool
    evaluator_builders: list[EvaluatorBuilder]
    seed: int | None
    infrequent_evaluator_builders: list[EvaluatorBuilder] = chz.field(default_factory=list)
    rolling_save_every: int = 0
    rolling_ttl_seconds: int = 7200
    submit_ahead: int = 1


async def main(config: Config) -> None:
    """Run off-policy distillation; an existing ``log_path`` with a checkpoint is resumed."""
    values = shared_values(config, _LoopConfig)
    builder = _MixtureBuilder(configs=config.dataset_configs)
    await run_supervised(_LoopConfig(distillation=config, dataset_builder=builder, **values), OffPolicyDistillationLoop)
