"""Self-distillation fine-tuning: the model, shown the golden answer, teaches itself on its own samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import chz

import tinker
from tinker_cookbook import renderers
from tinker_cookbook.checkpoint_utils import CheckpointRecord
from tinker_cookbook.distillation.datasets import TaggedGroupBuilder
from tinker_cookbook.distillation.sdft_data import (
    DEFAULT_DEMO_TEMPLATE,
    build_reverse_kl_datums,
    build_sdft_teacher_prompt,
    build_topk_distillation_datums,
    compute_sdft_advantages,
    reverse_kl_custom_loss,
)
from tinker_cookbook.distillation.train_on_policy import to_rl_config
from tinker_cookbook.eval.evaluators import SamplingClientEvaluatorBuilder
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.rl.batch_source import WrappedTrajectoryGroup
from tinker_cookbook.rl.data_processing import assemble_training_data
from tinker_cookbook.rl.loop import TrainingLoop
from tinker_cookbook.rl.train_step import adam_params
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.utils.misc_utils import split_list

__all__ = [
    "Config",
    "SDFTBatchProvider",
    "build_reverse_kl_datums",
    "build_sdft_teacher_prompt",
    "build_topk_distillation_datums",
    "compute_sdft_advantages",
    "main",
    "reverse_kl_custom_loss",
]


class SDFTBatchProvider(Protocol):
    """Batches of questions with golden answers."""

    def get_batch(self, index: int) -> tuple[Sequence[EnvGroupBuilder], Sequence[str], Sequence[str]]:
        """Group builders, questions and golden answers, in the same order."""
        ...

    def __len__(self) -> int:
        """Number of batches."""
        ...


@chz.chz
class Config:
    """One run. ``topk`` 0: learn from the sampled tokens alone, with an RL loss; else from the teacher's top-k, by
    forward KL, or by reverse KL with ``reverse``. ``teacher_sync_every``: the teacher becomes the student every so
    many steps; None: it stays the base model."""

    model_name: str
    learning_rate: float = 2e-5
    max_tokens: int = 2048
    log_path: str = chz.field(munger=lambda _, path: str(Path(path).expanduser()))
    recipe_name: str | None = None
    renderer_name: str | None = None
    lora_rank: int = 128
    base_url: str | None = None
    temperature: float = 1.0
    loss_fn: str = "importance_sampling"
    topk: int = 20
    reverse: bool = False
    demo_template: str = DEFAULT_DEMO_TEMPLATE
    system_prompt: str | None = None
    teacher_sync_every: int | None = None
    max_context_length: int = 32768
    skip_first_n_tokens: int = 3
    evaluator_builders: list[SamplingClientEvaluatorBuilder] = chz.field(default_factory=list)
    eval_every: int = 20
    save_every: int = 20
    num_substeps: int = 1
    wandb_project: str | None = None
    wandb_name: str | None = None
    session_name: str | None = None
    load_checkpoint_path: str | None = None
    max_steps: int | None = None
    enable_trace: bool = False
    span_chart_every: int = 0
    sampling_seed: int | None = None

    @chz.validate
    def _check(self) -> None:
        if self.topk < 0 or (self.reverse and self.topk == 0):
            raise ConfigurationError(f"topk={self.topk} must not be negative, and reverse=true needs topk > 0")
        for field in ("{question}", "{golden_answer}"):
            if field not in self.demo_template:
                raise ConfigurationError(f"demo_template must contain {field}")


class _QuestionBuilder(TaggedGroupBuilder):
    """Group builder with its question and golden answer."""

    def __init__(self, builder: EnvGroupBuilder, question: str, golden_answer: str) -> None:
        super().__init__(builder, 0)
        self.question, self.golden_answer = question, golden_answer


class _ProviderDataset(RLDataset):
    def __init__(self, provider: SDFTBatchProvider) -> None:
        self._provider = provider

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        return [_QuestionBuilder(*row) for row in zip(*self._provider.get_batch(index), strict=True)]

    def __len__(self) -> int:
        return len(self._provider)


@chz.chz
class _GivenDataset(RLDatasetBuilder):
    train: Any
    test: Any

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        return self.train, self.test


class SDFTLoop(TrainingLoop):
    """RL loop that learns from the teacher instead of from rewards."""

    def __init__(self, *args: Any, sdft: Config, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sdft = sdft
        if sdft.renderer_name is None:
            raise ConfigurationError("sdft needs renderer_name")
        self.renderer = renderers.get_renderer(sdft.renderer_name, self.tokenizer, model_name=sdft.model_name)

    async def setup(self, service_client: tinker.ServiceClient, resume: CheckpointRecord | None) -> None:
        self.teacher = await service_client.create_sampling_client(base_model=self.sdft.model_name)
        if resume is not None and self.sdft.teacher_sync_every is not None and resume.sampler_path is not None:
            # With every sync at a checkpoint the resumed teacher is the one of the uninterrupted run.
            self.teacher = await service_client.create_sampling_client(model_path=resume.sampler_path)

    async def prepare(self, groups: Sequence[WrappedTrajectoryGroup]) -> tuple[list[tinker.Datum], dict[str, float]]:
        sdft = self.sdft
        prompts = []
        for group in groups:
            builder = group.env_group_builder
            assert isinstance(builder, _QuestionBuilder)
            prompts.append(
                build_sdft_teacher_prompt(
                    builder.question, builder.golden_answer, self.renderer, sdft.system_prompt, sdft.demo_template
                )
            )
        trajectory_groups = [group.trajectory_group for group in groups]
        zeros = [[0.0] * len(group.trajectories_G) for group in trajectory_groups]
        data_D, metadata_D = assemble_training_data(trajectory_groups, zeros, include_provenance=False)
        if sdft.topk == 0:
            return data_D, await compute_sdft_advantages(
                data_D, metadata_D, self.teacher, prompts, sdft.max_context_length
            )
        build = build_reverse_kl_datums if sdft.reverse else build_topk_distillation_datums
        return await build(
            data_D,
            metadata_D,
            self.teacher,
            prompts,
            sdft.topk,
            sdft.max_context_length,
            len(self.tokenizer),
            sdft.skip_first_n_tokens,
        )

    async def step(self, data: list[tinker.Datum], substeps: int, metrics: dict[str, Any]) -> list[Any]:
        if self.sdft.topk == 0:
            return await super().step(data, substeps, metrics)
        params = adam_params(self.config)
        total, positions = 0.0, 0.0
        for part in split_list(data, min(substeps, len(data))):
            if self.sdft.reverse:
                forward_backward = self.training_client.forward_backward_custom(part, reverse_kl_custom_loss)
            else:
                forward_backward = self.training_client.forward_backward(part, "cross_entropy")
            optim = self.training_client.optim_step(params)
            result = await forward_backward
            await optim
            found = {key.removesuffix(":mean").removesuffix(":sum"): v for key, v in result.metrics.items()}
            metrics.update({key: float(value) for key, value in found.items() if key.startswith("sdft/")})
            if self.sdft.reverse:
                continue
            for datum, output in zip(part, result.loss_fn_outputs, strict=True):
                weights = datum.loss_fn_inputs["weights"].to_numpy()
                total -= float((output["logprobs"].to_numpy().reshape(weights.shape) * weights).sum())
                positions += float(weights.sum())
        if positions:
            metrics["sdft/cross_entropy"] = total / positions
            metrics["sdft/forward_kl"] = total / positions - float(metrics.get("sdft/mean_teacher_entropy", 0.0))
        return []

    async def after_step(self, step: int, sampler: tinker.SamplingClient) -> None:
        every = self.sdft.teacher_sync_every
        if every is not None and (step + 1) % every == 0:
            self.teacher = sampler


async def main(cfg: Config, sdft_dataset: SDFTBatchProvider, test_dataset: RLDataset | None = None) -> None:
    """Run self-distillation; an existing ``log_path`` with a checkpoint is resumed."""
    if cfg.reverse:
        import torch  # noqa: F401  (its loss needs it: a machine without it is told before the run is opened)
    rl = to_rl_config(cfg, _GivenDataset(train=_ProviderDataset(sdft_dataset), test=test_dataset))
    await rl_train.run_loop(rl, SDFTLoop, logged_config=cfg, sdft=cfg)
