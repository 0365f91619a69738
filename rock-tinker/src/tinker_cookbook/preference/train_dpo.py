"""Direct preference optimisation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import chz
import numpy as np

import tinker
from tinker_cookbook import checkpoint_utils
from tinker_cookbook.checkpoint_utils import DEFAULT_TTL_SECONDS, CheckpointManager, CheckpointRecord
from tinker_cookbook.eval.evaluators import Evaluator, EvaluatorBuilder
from tinker_cookbook.exceptions import CheckpointError
from tinker_cookbook.rl.metrics import full_sequence
from tinker_cookbook.supervised.loop import LoopSettings, SubmittedBatch, SupervisedLoop
from tinker_cookbook.supervised.train import run_supervised
from tinker_cookbook.supervised.types import ChatDatasetBuilder, SupervisedDataset
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.utils import ml_log
from tinker_cookbook.utils.format_colorized import format_colorized
from tinker_cookbook.utils.lr_scheduling import LRSchedule

if TYPE_CHECKING:
    import torch

REFERENCE = "reference"


@chz.chz
class Config:
    """One DPO run. The reference is the policy as it is when the run begins (or ``reference_model_name``); it is
    stored with the run, so that a resumed run compares with the same one. ``num_replicas``: taken for the sake of scripts that
    give it; how much runs in parallel is the server's business."""

    log_path: str = chz.field(munger=lambda _, path: str(Path(path).expanduser()))
    model_name: str
    dataset_builder: ChatDatasetBuilder
    recipe_name: str | None = None
    load_checkpoint_path: str | None = None
    renderer_name: str | None = None
    learning_rate: float = 1e-5
    lr_schedule: LRSchedule = "linear"
    num_epochs: int = 1
    dpo_beta: float = 0.1
    lora_rank: int = 32
    num_replicas: int = 8
    base_url: str | None = None
    evaluator_builders: list[EvaluatorBuilder] = chz.field(default_factory=list)
    infrequent_evaluator_builders: list[EvaluatorBuilder] = chz.field(default_factory=list)
    save_every: int = 20
    eval_every: int = 10
    infrequent_eval_every: int = 100
    ttl_seconds: int | None = DEFAULT_TTL_SECONDS
    rolling_save_every: int = 0
    rolling_ttl_seconds: int = 7200
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    wandb_project: str | None = None
    wandb_name: str | None = None
    session_name: str | None = None
    enable_trace: bool = False
    span_chart_every: int = 0
    reference_model_name: str | None = None
    max_steps: int | None = None
    # Beyond the common set
    seed: int | None = None


def compute_dpo_loss(
    chosen_logprobs: Sequence[torch.Tensor],
    rejected_logprobs: Sequence[torch.Tensor],
    chosen_ref_logprobs: Sequence[torch.Tensor],
    rejected_ref_logprobs: Sequence[torch.Tensor],
    dpo_beta: float,
) -> tuple[torch.Tensor, dict[str, float]]:
    """mean(−log σ(β·[(π − π_ref) of the chosen − (π − π_ref) of the rejected])) over pairs of sequence logprobs.

    Metrics: dpo_loss, accuracy (chosen preferred), margin, chosen_reward, rejected_reward (β times the difference).
    """
    import torch

    chosen = torch.stack([torch.as_tensor(x) for x in chosen_logprobs]).float()
    rejected = torch.stack([torch.as_tensor(x) for x in rejected_logprobs]).float()
    chosen_ref = torch.stack([torch.as_tensor(x) for x in chosen_ref_logprobs]).float()
    rejected_ref = torch.stack([torch.as_tensor(x) for x in rejected_ref_logprobs]).float()
    chosen_reward, rejected_reward = dpo_beta * (chosen - chosen_ref), dpo_beta * (rejected - rejected_ref)
    margin = chosen_reward - rejected_reward
    loss = -torch.nn.functional.logsigmoid(margin).mean()
    metrics = {
        "dpo_loss": float(loss.detach()),
        "accuracy": float((margin > 0).float().mean()),
        "margin": float(margin.detach().mean()),
        "chosen_reward": float(chosen_reward.detach().mean()),
        "rejected_reward": float(rejected_reward.detach().mean()),
    }
    return loss, metrics


async def _reference_client(
    config: Config,
    service_client: tinker.ServiceClient,
    training_client: tinker.TrainingClient,
    resume: CheckpointRecord | None,
) -> tinker.SamplingClient:
    if config.reference_model_name is not None:
        return await service_client.create_sampling_client(base_model=config.reference_model_name)
    records = checkpoint_utils.load_checkpoints_file(config.log_path)
    stored = [record.sampler_path for record in records if record.name == REFERENCE]
    if not stored and resume is not None:
        raise CheckpointError(f"{config.log_path} names no reference policy; a DPO run cannot be resumed without it")
    if not stored:
        paths = await checkpoint_utils.save_checkpoint_async(
            training_client, REFERENCE, config.log_path, {}, "sampler", None
        )
        stored = [paths["sampler_path"]]
    return await service_client.create_sampling_client(model_path=stored[0])


def create_dpo_clients(
    config: Config,
    service_client: tinker.ServiceClient,
    resume_info: CheckpointRecord | None = None,
    user_metadata: dict[str, str] | None = None,
) -> tuple[tinker.TrainingClient, tinker.SamplingClient]:
    """Training client and reference of a run; for code without an event loop."""

    async def create() -> tuple[tinker.TrainingClient, tinker.SamplingClient]:
        training_client = await checkpoint_utils.open_training_client(
            service_client,
            model_name=config.model_name,
            lora_rank=config.lora_rank,
            resume_from=resume_info,
            load_checkpoint_path=config.load_checkpoint_path,
            renderer_name=config.renderer_name,
            user_metadata=user_metadata,
            seed=config.seed,
        )
        return training_client, await _reference_client(config, service_client, training_client, resume_info)

    return asyncio.run(create())


class DPOLoop(SupervisedLoop):
    """Supervised loop with the DPO loss; data alternate chosen, rejected."""

    reference_client: tinker.SamplingClient
    dpo_beta: float

    async def setup(self, service_client: tinker.ServiceClient, config: Any, resume: CheckpointRecord | None) -> None:
        self.dpo_beta = config.dpo_beta
        self.reference_client = await _reference_client(config, service_client, self.training_client, resume)

    async def prepare(self, data: list[tinker.Datum]) -> list[tinker.Datum]:
        logprobs = await asyncio.gather(*(self._reference_logprob(datum) for datum in data))
        self._reference_by_id = {id(datum): value for datum, value in zip(data, logprobs, strict=True)}
        return data

    async def _reference_logprob(self, datum: tinker.Datum) -> float:
        logprobs = await self.reference_client.compute_logprobs(full_sequence(datum))
        values = np.asarray([0.0 if value is None else value for value in logprobs[1:]])
        return float((values * np.asarray(datum.loss_fn_inputs["weights"].to_numpy())).sum())

    def submit(self, data: list[tinker.Datum], learning_rate: float) -> tuple[Any, Any]:
        reference = [self._reference_by_id[id(datum)] for datum in data]
        weights = [np.asarray(datum.loss_fn_inputs["weights"].to_numpy()) for datum in data]
        beta = self.dpo_beta

        def loss(_: list[tinker.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
            import torch

            policy = [(lp * torch.as_tensor(w)).sum() for lp, w in zip(logprobs, weights, strict=True)]
            fixed = [torch.tensor(value) for value in reference]
            return compute_dpo_loss(policy[0::2], policy[1::2], fixed[0::2], fixed[1::2], beta)

        forward_backward = self.training_client.forward_backward_custom(data, loss)
        return forward_backward, self.training_client.optim_step(self.adam(learning_rate))

    def read(self, batch: SubmittedBatch, result: Any) -> dict[str, float]:
        names = ("dpo_loss", "accuracy", "margin", "chosen_reward", "rejected_reward")
        found = {key.split(":")[0]: float(value) for key, value in result.metrics.items()}
        return {**{name: found[name] for name in names if name in found}, "num_pairs": len(batch.data) / 2}


def do_update(
    epoch_idx: int,
    batch_idx: int,
    n_batches: int,
    total_steps: int,
    config: Config,
    training_client: tinker.TrainingClient,
    reference_client: tinker.SamplingClient,
    evaluators: list[Evaluator],
    infrequent_evaluators: list[Evaluator],
    dataset: SupervisedDataset,
    ml_logger: ml_log.Logger,
    log_path: str,
    tokenizer: Tokenizer,
    checkpoint_mgr: CheckpointManager | None = None,
) -> None:
    """One step: evaluations and a checkpoint where they are due, training on a batch, and metrics; for code without an event
    loop. Without ``checkpoint_mgr`` nothing is saved."""
    if checkpoint_mgr is None:
        no_service = cast(tinker.ServiceClient, None)  # it is only asked to delete rolling checkpoints
        checkpoint_mgr = CheckpointManager(training_client, no_service, log_path)
    loop = DPOLoop(
        LoopSettings.from_config(config),
        training_client,
        checkpoint_mgr,
        dataset,
        evaluators,
        infrequent_evaluators,
        ml_logger,
        tokenizer,
    )
    loop.reference_client, loop.dpo_beta = reference_client, config.dpo_beta
    asyncio.run(loop.update(epoch_idx, batch_idx, n_batches, total_steps))


async def amain(config: Config) -> None:
    """Run DPO."""
    import torch  # noqa: F401  (the loss needs it: a machine without it is told before the run is opened)

    await run_supervised(config, DPOLoop)


def main(config: Config) -> None:
    """Run DPO; an existing ``log_path`` with a checkpoint is resumed where it stopped."""
    asyncio.run(amain(config))


def print_example(datum: tinker.Datum, tokenizer: Tokenizer, label: str = "") -> None:
    """Show a datum with its trained tokens coloured."""
    targets = [int(token) for token in datum.loss_fn_inputs["target_tokens"].to_numpy()]
    weights = [float(weight) for weight in datum.loss_fn_inputs["weights"].to_numpy()]
    print(f"{label}\n{format_colorized(targets, weights, tokenizer)}")
