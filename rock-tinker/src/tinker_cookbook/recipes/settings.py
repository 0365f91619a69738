"""Settings that recipes have in common. A recipe's ``CLIConfig`` adds its own, and may give others new defaults."""

from __future__ import annotations

from typing import Any

import chz

from tinker_cookbook.cli_utils import LogdirBehavior
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.advantages import AdvantageEstimator
from tinker_cookbook.utils.config_fields import field_names

_AT_LEAST_ONE = {
    "batch_size", "group_size", "groups_per_batch", "train_group_size", "test_group_size", "deepmath_groups_per_batch",
    "tulu3_groups_per_batch", "max_tokens", "max_length", "max_turns", "num_epochs", "num_substeps", "num_minibatches",
}  # fmt: skip
_NOT_NEGATIVE = {
    "learning_rate", "temperature", "eval_temperature", "kl_penalty_coef", "max_steps", "save_every", "eval_every",
    "lora_rank", "dpo_beta", "test_size", "num_test",
}  # fmt: skip


@chz.chz
class RunSettings:
    """Where a run writes, what it is called, which server it uses, and when it ends.

    ``log_path``: None makes a new folder below the folder of runs. ``base_url``: None means ``TINKER_BASE_URL``.
    """

    log_path: str | None = None
    wandb_project: str | None = None
    wandb_name: str | None = None
    session_name: str | None = None
    base_url: str | None = None
    behavior_if_log_dir_exists: LogdirBehavior = "ask"
    max_steps: int | None = None

    @chz.validate
    def _check_numbers(self) -> None:
        for names, least in ((_AT_LEAST_ONE, 1), (_NOT_NEGATIVE, 0)):
            for name in sorted(names & field_names(type(self))):
                value = getattr(self, name)
                if value is not None and value < least:
                    raise ConfigurationError(f"{name}={value} must be at least {least}")


@chz.chz
class TrainingSettings(RunSettings):
    """What is trained. ``renderer_name``: None means that of the checkpoint, else the recommended one of the model.
    ``eval_every`` and ``save_every`` count steps; 0 switches off."""

    renderer_name: str | None = None
    load_checkpoint_path: str | None = None
    lora_rank: int = 32
    eval_every: int = 20
    save_every: int = 20


@chz.chz
class RLSettings(TrainingSettings):
    """Options of the RL loop (see ``rl.config.Config``). ``kl_penalty_coef`` > 0 keeps near the base model."""

    temperature: float = 1.0
    eval_temperature: float = 1.0
    loss_fn: str = "importance_sampling"
    loss_fn_config: dict[str, Any] | None = None
    advantage_estimator: AdvantageEstimator = "mean_centered"
    num_substeps: int = 1
    kl_penalty_coef: float = 0.0
    compute_post_kl: bool = False
    sampling_seed: int | None = None
