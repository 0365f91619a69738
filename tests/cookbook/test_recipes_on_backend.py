"""Every recipe as a program against a real backend with a tiny model: exit 0, the files of a run and its metrics."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from recipe_backend import RecipeBackend, metric_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RUN_FILES = {"config.json", "code.diff", "logs.log", "metrics.jsonl", "checkpoints.jsonl", "timing_spans.jsonl"}
ROLLOUT_FILES = {"train.html", "train_logtree.json", "train_rollout_summaries.jsonl"}
SL_KEYS = {
    "step", "epoch", "progress", "learning_rate", "num_sequences", "num_tokens", "num_loss_tokens", "train_mean_nll",
    "train_mean_bpb", "time/get_batch", "time/submit_batch", "time/step", "time/finish_batch",
}  # fmt: skip
RL_KEYS = {
    "step", "progress/batch", "progress/done_frac", "optim/lr", "optim/entropy", "optim/kl_sample_train_v1",
    "optim/kl_sample_train_v2", "env/all/reward/total", "env/all/ac_tokens_per_turn", "env/all/ob_tokens_per_turn",
    "env/all/turns_per_episode", "env/all/total_episodes", "env/all/total_turns", "env/all/total_ac_tokens",
    "env/all/total_ob_tokens", "env/all/by_group/frac_mixed", "env/all/by_group/frac_all_good",
    "env/all/by_group/frac_all_bad", "tokens/sampled", "tokens/prefill_cached", "tokens/prefill_uncached",
    "tokens/trained", "tokens/cumulative/sampled", "time/total",
}  # fmt: skip
DPO_KEYS = {
    "dpo_loss", "accuracy", "margin", "chosen_reward", "rejected_reward", "num_pairs", "num_tokens", "learning_rate",
    "progress",
}  # fmt: skip
SDFT_KEYS = {
    "sdft/num_datums", "sdft/topk", "sdft/total_completion_tokens", "sdft/mean_teacher_entropy",
    "sdft/teacher_truncated_count",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A recipe's smallest run. ``{model}`` in a setting stands for the model's name, ``steps`` for rows expected."""

    settings: dict[str, Any]
    keys: set[str]
    rollouts: bool = False
    evals: tuple[str, ...] = ()
    steps: int = 2


def rl(keys: set[str] | None = None, evals: tuple[str, ...] = (), **settings: Any) -> Case:
    return Case(settings, RL_KEYS | (keys or set()), True, evals)


CHAT = {"dataset": "example", "batch_size": 8, "max_length": 128}
TEACHERS = {"deepmath_teacher_model": "{model}", "tulu3_teacher_model": "{model}"}
CASES: dict[str, Case] = {
    "chat_sl.train": Case({**CHAT, "test_size": 8, "eval_every": 1}, SL_KEYS | {"test/nll", "test/bpb"}, steps=3),
    "sl_loop": Case(CHAT, {"step", "progress", "learning_rate", "train_mean_nll"}),
    "rl_loop": Case(
        {"env": "arithmetic", "batch_size": 2, "group_size": 4, "max_tokens": 3},
        {"step", "progress", "reward/mean", "num_datums"},
    ),
    "math_rl.train": rl(
        {"env/all/correct", "env/all/format"}, groups_per_batch=2, group_size=4, max_tokens=3, eval_every=0
    ),
    "multiplayer_rl.guess_number.train": rl(
        {"env/all/readable"}, batch_size=2, group_size=2, max_tokens=6, largest=9, num_test=2, eval_every=0
    ),
    "multiplayer_rl.twenty_questions.train": rl(
        batch_size=1,
        group_size=2,
        max_tokens=4,
        eval_every=0,
        answerer_model_name="{model}",
        answerer_renderer_name="qwen3_instruct",
    ),
    "multiplayer_rl.text_arena.train": rl(
        {"test/env/all/reward/total"},
        ("eval_test",),
        batch_size=4,
        num_test_datapoints=2,
        max_tokens=4,
        test_opponent="base_model",
        eval_every=2,
    ),
    "preference.shorter.train": rl(
        {"kl_pre_post_v1"}, batch_size=2, group_size=4, max_tokens=4, eval_every=0, compute_post_kl="true"
    ),
    "preference.dpo.train": Case({**CHAT, "batch_size": 4}, DPO_KEYS),
    "distillation.off_policy_reasoning": Case(CHAT, SL_KEYS),
    "distillation.on_policy_distillation": rl(
        {"teacher_kl"}, dataset="example", teacher_model="{model}", groups_per_batch=2, group_size=2, max_tokens=4,
        eval_every=0,
    ),
    "distillation.on_policy_multi_teacher": rl(
        {"teacher_kl/dataset_0", "teacher_kl/dataset_1"},
        deepmath_dataset="example",
        tulu3_dataset="example",
        deepmath_groups_per_batch=1,
        tulu3_groups_per_batch=1,
        group_size=2,
        max_tokens=4,
        eval_every=0,
        **TEACHERS,
    ),
    "rl_numerics_check.train": rl(
        {"env/all/one_sequence"},
        groups_per_batch=2,
        group_size=2,
        max_tokens=8,
        corpus_path="example",
        **{"task.num_pages_min": 2, "task.num_pages_max": 3, "task.page_chars": 200},
    ),
    "search_tool.train": rl(batch_size=2, group_size=2, max_tokens=8),
    "sdft.train": Case(
        {"dataset": "example", "groups_per_batch": 2, "max_tokens": 6, "topk": 3, "eval_every": 0}, SDFT_KEYS
    ),
    "rubric.train": rl(
        {"env/all/rubric_score", "test/env/all/rubric_score"},
        grader_llm_name="{model}",
        grader_renderer_name="qwen3_instruct",
        groups_per_batch=2,
        max_tokens=3,
        eval_every=2,
        test_jsonl_path="test.jsonl",
        train_jsonl_path="train.jsonl",
    ),
}  # fmt: skip


def check_run(path: Path, case: Case) -> None:
    """The files of a run and its metric keys, and that nothing is infinite or not a number."""
    rows = metric_rows(path)
    assert len(rows) == case.steps
    seen = {key for row in rows for key in row}
    assert case.keys <= seen, sorted(case.keys - seen)
    for row in rows:
        for key, value in row.items():
            assert not isinstance(value, float) or abs(value) < 1e9, (key, value)
    assert {file.name for file in path.iterdir()} >= RUN_FILES
    final = json.loads((path / "checkpoints.jsonl").read_text().splitlines()[-1])
    assert final["final"] is True
    assert final["sampler_path"].startswith("tinker://") and final["state_path"].startswith("tinker://")
    if case.rollouts:
        folder = path / "iteration_000000"
        assert {file.name for file in folder.iterdir()} >= ROLLOUT_FILES
        summary = json.loads((folder / "train_rollout_summaries.jsonl").read_text().splitlines()[0])
        assert summary["schema_version"] == 1 and summary["split"] == "train" and summary["steps"]
        for label in case.evals:
            assert (folder / f"{label}.html").is_file() and (folder / f"{label}_rollout_summaries.jsonl").is_file()


def common(backend: RecipeBackend) -> dict[str, Any]:
    return {
        "model_name": backend.model,
        "renderer_name": "qwen3_instruct",
        "log_path": "run",
        "max_steps": 2,
        "lora_rank": 4,
    }


@pytest.mark.parametrize("recipe", sorted(CASES))
def test_recipe_ends_well_and_leaves_its_files(recipe: str, recipe_backend: RecipeBackend, tmp_path: Path) -> None:
    case = CASES[recipe]
    settings = {**common(recipe_backend), **case.settings}
    settings = {k: str(v).replace("{model}", str(recipe_backend.model)) for k, v in settings.items()}
    if recipe == "rubric.train":
        data = {"train_path": "train.jsonl", "test_path": "test.jsonl", "num_train": 8, "num_test": 2}
        recipe_backend.run_recipe("rubric.generate_data", tmp_path, data)
    recipe_backend.run_recipe(recipe, tmp_path, settings)
    if recipe in ("sl_loop", "rl_loop"):  # loops without the library write metrics and checkpoints alone
        rows = metric_rows(tmp_path / "run")
        assert len(rows) == case.steps and case.keys <= set(rows[0]), sorted(rows[0])
        assert (tmp_path / "run" / "checkpoints.jsonl").is_file()
        return
    check_run(tmp_path / "run", case)


def test_prompt_distillation_makes_its_data_and_learns_from_data(recipe_backend: RecipeBackend, tmp_path: Path) -> None:
    name = {"model_name": recipe_backend.model, "renderer_name": "qwen3_instruct"}
    settings = {**name, "output_file": "made.jsonl", "max_texts": 4, "max_tokens": 8, "num_samples": 2}
    output = recipe_backend.run_recipe("prompt_distillation.create_data", tmp_path, settings)
    assert " of 8 answers were readable" in output and (tmp_path / "made.jsonl").is_file()
    answers = [
        {"messages": [{"role": "user", "content": f"t{i}"}, {"role": "assistant", "content": "Language: en"}]}
        for i in range(16)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    settings = {**common(recipe_backend), "file_path": "data.jsonl", "batch_size": 8, "max_length": 128}
    recipe_backend.run_recipe("prompt_distillation.train", tmp_path, settings)
    check_run(tmp_path / "run", Case({}, SL_KEYS))


def test_sampler_and_trainer_of_the_engine_agree(recipe_backend: RecipeBackend, tmp_path: Path) -> None:
    small = {"rounds": 2, "prompts": 4, "samples": 2, "max_tokens": 16, "learning_rate": 0.01, "lora_rank": 4}
    name = {"model_name": recipe_backend.model, "renderer_name": "qwen3_instruct", "log_path": "run"}
    output = recipe_backend.run_recipe("rl_numerics_check.compare", tmp_path, {**name, **small})
    assert "differ" not in output and "learning_rate to see" not in output
    rows = metric_rows(tmp_path / "run")
    assert len(rows) == 2 and all(row["kl_sample_train_v2"] < 1e-9 < 1e-3 < row["moved_v2"] for row in rows), rows


def test_a_sweep_runs_in_processes_of_its_own_and_ends_with_a_table(
    recipe_backend: RecipeBackend, tmp_path: Path
) -> None:
    base = {
        "model_name": recipe_backend.model,
        "renderer_name": "qwen3_instruct",
        **CHAT,
        "max_steps": 2,
        "eval_every": 0,
    }
    settings = {f"base.{name}": value for name, value in base.items()}
    settings |= {"learning_rates": "1e-3,1e-2", "lora_ranks": "4", "max_parallel": 2, "sweep_dir": "sweep"}
    output = recipe_backend.run_recipe("chat_sl.sweep.cli", tmp_path, settings).splitlines()
    assert [line.split()[0] for line in output[-2:]] == ["0.001", "0.01"] and "rank 4" in output[-3]
    for name in ("learning_rate-0.001_lora_rank-4", "learning_rate-0.01_lora_rank-4"):
        check_run(tmp_path / "sweep" / name, Case({}, SL_KEYS, steps=3))
        assert "checkpoint final" in (tmp_path / "sweep" / f"{name}.out").read_text()
    again = recipe_backend.run_recipe("chat_sl.sweep.cli", tmp_path, {**settings, "skip_existing": "true"})
    assert again.splitlines()[-3:] == output[-3:]


def test_the_stages_of_rlhf_follow_one_another(recipe_backend: RecipeBackend, tmp_path: Path) -> None:
    settings = {
        "base_model": recipe_backend.model,
        "renderer_name": "qwen3_instruct",
        "log_path": "run",
        "sft_dataset": "example",
        "comparisons": "example",
        "batch_size": 8,
        "rl_batch_size": 2,
        "rl_max_tokens": 4,
        "max_steps": 2,
        "eval_comparisons": 2,
        "eval_every": 2,
        "max_length": 512,
        "lora_rank": 4,
    }
    recipe_backend.run_recipe("preference.rlhf.rlhf_pipeline", tmp_path, settings)
    for stage, keys in (("sft", SL_KEYS), ("rm", SL_KEYS), ("rl", RL_KEYS | {"win_rate", "stderr"})):
        rows = metric_rows(tmp_path / "run" / stage)
        seen = {key for row in rows for key in row}
        assert rows and keys <= seen, (stage, sorted(keys - seen))


def test_the_basic_plans_run_on_folders_in_place_of_the_hub(recipe_backend: RecipeBackend, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Say a."}, {"role": "assistant", "content": "a"}]
    robots = tmp_path / "HuggingFaceH4" / "no_robots"
    robots.mkdir(parents=True)
    for split, count in (("train", 128), ("test", 8)):
        (robots / f"{split}.jsonl").write_text((json.dumps({"prompt": "p", "messages": chat}) + "\n") * count)
    gsm8k = tmp_path / "openai" / "gsm8k"
    (gsm8k / "main").mkdir(parents=True)
    files = "".join(f"  - split: {split}\n    path: main/{split}.jsonl\n" for split in ("train", "test"))
    (gsm8k / "README.md").write_text(f"---\nconfigs:\n- config_name: main\n  data_files:\n{files}---\n")
    for split in ("train", "test"):
        row = {"question": f"{split}: What is 1 + 1?", "answer": "It is.\n#### 2"}
        (gsm8k / "main" / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    settings = {**common(recipe_backend), "max_steps": 1}
    cache = {"HF_DATASETS_CACHE": str(tmp_path / "cache")}
    recipe_backend.run_recipe("sl_basic", tmp_path, {**settings, "log_path": "sl"}, **cache)
    assert {"train_mean_nll", "test/nll"} <= {key for row in metric_rows(tmp_path / "sl") for key in row}
    recipe_backend.run_recipe("rl_basic", tmp_path, {**settings, "log_path": "rl", "max_tokens": 2}, **cache)
    check_run(tmp_path / "rl", Case({}, RL_KEYS | {"env/all/correct"}, True, steps=1))
    assert metric_rows(tmp_path / "rl")[0]["env/all/total_episodes"] == 16


def test_the_image_recipe_is_refused_in_one_line(recipe_backend: RecipeBackend, tmp_path: Path) -> None:
    process = recipe_backend.start_recipe("vlm_classifier.train", tmp_path, {})
    assert process.wait(60) == 1
    output = (tmp_path / "output.log").read_text()
    assert "image input" in output and "Traceback" not in output


def test_a_model_that_the_server_has_not_is_refused(recipe_backend: RecipeBackend, tmp_path: Path) -> None:
    settings = {**common(recipe_backend), **CHAT, "base_url": recipe_backend.url}
    renamed = tmp_path / "other"
    renamed.symlink_to(recipe_backend.model)
    process: subprocess.Popen[bytes] = recipe_backend.start_recipe(
        "chat_sl.train", tmp_path, {**settings, "model_name": renamed}
    )
    assert process.wait(60) != 0
    assert str(renamed) in (tmp_path / "output.log").read_text()
