"""Configuration of reinforcement learning runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import chz

from tinker_cookbook.checkpoint_utils import DEFAULT_TTL_SECONDS
from tinker_cookbook.eval.evaluators import SamplingClientEvaluatorBuilder
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.advantages import AdvantageEstimator
from tinker_cookbook.rl.rollout_limits import TerminationRewardPolicy
from tinker_cookbook.rl.rollout_presets import default_rollout_config_for_model, default_rollout_strategy_for_model
from tinker_cookbook.rl.rollout_strategy import RolloutStrategy, rollout_strategy_from_config
from tinker_cookbook.rl.types import RLDatasetBuilder

LossFnType: TypeAlias = str
LOSSES = ("importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce")


@chz.chz
class KLReferenceConfig:
    """The policy from which a run shall not move far away."""

    base_model: str
    load_checkpoint_path: str | None = None


@chz.chz
class AsyncConfig:
    """Sampling runs ahead of training: at most ``groups_per_batch * (max_steps_off_policy + 1)`` groups are started
    and not yet trained; the oldest are trained first and none is thrown away."""

    max_steps_off_policy: int
    groups_per_batch: int
    loss_fn: LossFnType = "importance_sampling"

    @chz.validate
    def _check(self) -> None:
        if self.max_steps_off_policy < 0 or self.groups_per_batch < 1:
            raise ConfigurationError("async_config: max_steps_off_policy must be >= 0 and groups_per_batch >= 1")


@chz.chz
class StreamMinibatchConfig:
    """Training begins while groups are still being sampled: each optimizer step accumulates ``num_minibatches``
    forward-backward calls, made as soon as enough groups are done. With ``async_config``, too, where groups of earlier
    weights count as well."""

    groups_per_batch: int
    num_minibatches: int

    @chz.validate
    def _check(self) -> None:
        if self.num_minibatches < 1 or self.groups_per_batch % self.num_minibatches:
            raise ConfigurationError(
                f"stream_minibatch_config: groups_per_batch={self.groups_per_batch} must be a multiple of "
                f"num_minibatches={self.num_minibatches}"
            )


@chz.chz
class Config:
    """One reinforcement learning run.

    Advantages: ``advantage_estimator`` (mean_centered: reward minus group mean, the default; std_normalized; rloo; gae
    with ``gae_gamma`` and ``gae_lambda``). ``sampling_seed``: draw every sample, and a new adapter's first
    weights, with a seed of its own, so that a run can be repeated. ``eval_temperature``: temperature of the held-out rollouts.
    """

    learning_rate: float
    dataset_builder: RLDatasetBuilder
    model_name: str
    max_tokens: int
    log_path: str = chz.field(munger=lambda _, path: str(Path(path).expanduser()))
    recipe_name: str | None = None
    eval_every: int = 20
    save_every: int = 20
    evaluator_builders: list[SamplingClientEvaluatorBuilder] = chz.field(default_factory=list)
    load_checkpoint_path: str | None = None
    renderer_name: str | None = None
    wandb_project: str | None = None
    wandb_name: str | None = None
    session_name: str | None = None
    kl_penalty_coef: float = 0.0
    kl_discount_factor: float = 0.0
    kl_reference_config: KLReferenceConfig | None = None
    loss_fn: LossFnType = "importance_sampling"
    loss_fn_config: dict[str, Any] | None = None
    num_substeps: int = 1
    lora_rank: int = 32
    temperature: float = 1.0
    compute_post_kl: bool = False
    remove_constant_reward_groups: bool = False
    rollout_error_tolerance: bool | RolloutStrategy | None = None
    termination: TerminationRewardPolicy | None = None
    enable_trace: bool = False
    span_chart_every: int = 0
    async_config: AsyncConfig | None = None
    stream_minibatch_config: StreamMinibatchConfig | None = None
    base_url: str | None = None
    ttl_seconds: int | None = DEFAULT_TTL_SECONDS
    rolling_save_every: int = 0
    rolling_ttl_seconds: int = 7200
    num_groups_to_log: int = 4
    rollout_json_export: bool = True
    num_epochs: int = 1
    max_steps: int | None = None
    # Beyond the common set
    advantage_estimator: AdvantageEstimator = "mean_centered"
    gae_gamma: float = 1.0
    gae_lambda: float = 1.0
    eval_temperature: float = 1.0
    sampling_seed: int | None = None
    grad_clip_norm: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8

    @chz.validate
    def _check(self) -> None:
        if self.kl_penalty_coef > 0 and self.kl_reference_config is None:
            raise ConfigurationError("kl_penalty_coef > 0 needs kl_reference_config (for example the base model)")
        if self.kl_discount_factor > 0 and self.training_loss_fn() == "stable_reinforce":
            raise ConfigurationError("kl_discount_factor > 0 cannot be combined with loss_fn=stable_reinforce")
        if self.async_config is not None and self.loss_fn not in ("importance_sampling", self.async_config.loss_fn):
            raise ConfigurationError(
                f"loss_fn={self.loss_fn!r} contradicts async_config.loss_fn={self.async_config.loss_fn!r}, which is used"
            )
        modes = (self.async_config, self.stream_minibatch_config)
        sizes = [mode.groups_per_batch for mode in modes if mode is not None]
        if len(set(sizes)) > 1:
            raise ConfigurationError(
                f"async_config.groups_per_batch={sizes[0]} and stream_minibatch_config.groups_per_batch={sizes[1]} "
                "are both the groups of a training step; give the same number"
            )
        if self.training_loss_fn() not in LOSSES:
            raise ConfigurationError(f"loss_fn={self.training_loss_fn()!r} is unknown; use one of {', '.join(LOSSES)}")
        if self.num_substeps < 1:
            raise ConfigurationError(f"num_substeps={self.num_substeps} must be at least 1")

    def training_loss_fn(self) -> LossFnType:
        """The loss of the mode in use."""
        return self.loss_fn if self.async_config is None else self.async_config.loss_fn

    def records_stability_info(self) -> bool:
        """Whether sampling must record what ``stable_reinforce`` needs."""
        return self.training_loss_fn() == "stable_reinforce"

    def effective_termination(self) -> TerminationRewardPolicy | None:
        """Policy for episodes that hit a limit: the one given, else that of the model's preset; None: what the
        environments bring along."""
        return self.termination or default_rollout_config_for_model(self.model_name).termination

    def effective_rollout_strategy(self) -> RolloutStrategy:
        """Strategy for failed rollouts: the one given, else that of the model's preset."""
        if self.rollout_error_tolerance is None:
            return default_rollout_strategy_for_model(self.model_name)
        return rollout_strategy_from_config(self.rollout_error_tolerance)


RunMode: TypeAlias = Literal["sync", "stream_minibatch", "async"]


def run_mode(config: Config) -> RunMode:
    """How sampling and training alternate; with ``async_config``, ``stream_minibatch_config`` divides its steps."""
    if config.async_config is not None:
        return "async"
    return "stream_minibatch" if config.stream_minibatch_config is not None else "sync"
