"""Small runs of recipes that a model of 135 million parameters learns something in, within minutes on two cores."""

from __future__ import annotations

from dataclasses import dataclass, field

Setting = str | int | float | bool

_RL: dict[str, Setting] = {"eval_every": 0, "save_every": 3}


@dataclass(frozen=True)
class Curve:
    """A metric to plot. ``down``: learning makes it smaller."""

    key: str
    label: str
    down: bool = False


@dataclass(frozen=True)
class Experiment:
    """A recipe with small settings.

    ``before``: a further module that makes the data first, with its settings; ``{folder}`` in a setting stands for the
    folder of the run and ``{data}`` for the folder of this file. ``needs``: an experiment whose final sampler weights
    replace ``{teacher}``, and whose final training state replaces ``{state}``.
    """

    module: str
    settings: dict[str, Setting]
    curves: tuple[Curve, ...]
    before: tuple[str, dict[str, Setting]] | None = None
    needs: str | None = None
    seed_settings: tuple[str, ...] = ()
    title: str = field(default="", kw_only=True)


EXPERIMENTS: dict[str, Experiment] = {
    "arithmetic": Experiment(
        "math_rl.train",
        {
            **_RL,
            "env": "arithmetic",
            "largest": 10,
            "groups_per_batch": 8,
            "group_size": 8,
            "max_tokens": 5,
            "lora_rank": 16,
            "learning_rate": 5e-4,
            "max_steps": 12,
        },
        (Curve("env/all/correct", "share of correct sums"),),
        seed_settings=("seed", "sampling_seed"),
        title="math_rl, sums below 20",
    ),
    "shorter": Experiment(
        "preference.shorter.train",
        {
            **_RL,
            "renderer_name": "qwen3_instruct",
            "batch_size": 2,
            "group_size": 8,
            "max_tokens": 64,
            "lora_rank": 16,
            "learning_rate": 5e-4,
            "compute_post_kl": False,
            "max_steps": 8,
        },
        (Curve("env/all/ac_tokens_per_turn", "tokens an answer", down=True),),
        seed_settings=("sampling_seed",),
        title="preference.shorter",
    ),
    "guess_form": Experiment(
        "chat_sl.train",
        {
            "dataset": "{data}/guess_form.jsonl",
            "batch_size": 4,
            "test_size": 8,
            "max_length": 256,
            "lora_rank": 16,
            "learning_rate": 1e-4,
            "lr_schedule": "constant",
            "num_epochs": 1,
            "eval_every": 2,
            "save_every": 0,
        },
        (Curve("test/nll", "held-out loss a token", down=True),),
        seed_settings=("seed",),
        title="chat_sl, 16 games of aimless guesses: the form of an answer",
    ),
    "guess_number": Experiment(
        "multiplayer_rl.guess_number.train",
        {
            **_RL,
            "renderer_name": "qwen3_instruct",
            "load_checkpoint_path": "{state}",
            "largest": 4,
            "num_test": 1,
            "batch_size": 2,
            "group_size": 6,
            "max_tokens": 8,
            "lora_rank": 16,
            "learning_rate": 5e-4,
            "max_steps": 7,
        },
        (Curve("env/all/reward/total", "games won"), Curve("env/all/readable", "readable guesses")),
        needs="guess_form",
        seed_settings=("seed", "sampling_seed"),
        title="multiplayer_rl.guess_number, numbers up to 4, from guess_form",
    ),
    "dpo": Experiment(
        "preference.dpo.train",
        {
            "dataset": "example",
            "batch_size": 6,
            "max_length": 96,
            "lora_rank": 16,
            "learning_rate": 2e-4,
            "max_steps": 10,
            "save_every": 3,
            "eval_every": 0,
        },
        (Curve("accuracy", "pairs ranked right"), Curve("dpo_loss", "loss", down=True)),
        seed_settings=("seed",),
        title="preference.dpo, every pair seen once",
    ),
    "chat_sl": Experiment(
        "chat_sl.train",
        {
            "dataset": "example",
            "batch_size": 16,
            "test_size": 16,
            "max_length": 96,
            "lora_rank": 16,
            "learning_rate": 1e-3,
            "lr_schedule": "constant",
            "num_epochs": 1,
            "eval_every": 2,
            "save_every": 0,
        },
        (Curve("test/nll", "held-out loss a token", down=True), Curve("train_mean_nll", "training loss", down=True)),
        seed_settings=("seed",),
        title="chat_sl, 112 conversations once",
    ),
    "on_policy_distillation": Experiment(
        "distillation.on_policy_distillation",
        {
            **_RL,
            "dataset": "example",
            "teacher_model": "{model}",
            "teacher_checkpoint": "{teacher}",
            "groups_per_batch": 4,
            "group_size": 2,
            "max_tokens": 16,
            "lora_rank": 16,
            "learning_rate": 5e-4,
            "max_steps": 8,
        },
        (Curve("teacher_kl", "KL to the teacher, a token", down=True),),
        needs="chat_sl",
        seed_settings=("sampling_seed",),
        title="on-policy distillation from the tuned model",
    ),
    "prompt_distillation": Experiment(
        "prompt_distillation.train",
        {
            "file_path": "{folder}/data.jsonl",
            "batch_size": 8,
            "test_size": 10,
            "max_length": 96,
            "lora_rank": 16,
            "learning_rate": 1e-3,
            "lr_schedule": "constant",
            "num_epochs": 2,
            "eval_every": 2,
            "save_every": 0,
        },
        (Curve("test/nll", "held-out loss a token", down=True), Curve("train_mean_nll", "training loss", down=True)),
        before=(
            "prompt_distillation.create_data",
            {"output_file": "{folder}/data.jsonl", "max_tokens": 6, "answer_prefix": "Language:"},
        ),
        seed_settings=("seed",),
        title="prompt distillation of a language classifier",
    ),
    "sdft": Experiment(
        "sdft.train",
        {
            **_RL,
            "dataset": "example",
            "groups_per_batch": 12,
            "max_tokens": 16,
            "topk": 20,
            "skip_first_n_tokens": 0,
            "lora_rank": 16,
            "learning_rate": 1e-3,
            "max_steps": 10,
        },
        (Curve("sdft/forward_kl", "forward KL to the shown answer, a token", down=True),),
        seed_settings=("seed", "sampling_seed"),
        title="sdft",
    ),
}

# ``harbor_grpo.py`` runs this one: options of ``run.sh grpo``, and the kind and number of mini tasks. Every pass over
# the tasks takes each once, so that passes can be compared.
HARBOR_KIND, HARBOR_TASKS = "append", 3
HARBOR_OPTIONS: dict[str, Setting] = {
    "num-steps": 9,
    "group-size": 8,
    "rollout-concurrency": 4,
    "learning-rate": 4e-4,
    "lora-rank": 16,
}
HARBOR_GRPO = Experiment(
    "grpo", HARBOR_OPTIONS, (Curve("reward", "solved, of 8 rollouts"),), title=f"GRPO, mini Harbor tasks: {HARBOR_KIND}"
)
