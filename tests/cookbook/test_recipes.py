"""Recipes end to end against a service in memory: they run, write the files of a run, and refuse typos."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tinker_cookbook import cli
from tinker_cookbook.exceptions import ConfigurationError

RECIPES = "tinker_cookbook.recipes."


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


async def run(module: str, config_name: str, main_name: str, **settings: Any) -> None:
    recipe = importlib.import_module(RECIPES + module)
    await getattr(recipe, main_name)(getattr(recipe, config_name)(**settings))


@pytest.fixture
def common(
    fake_service: Any, universal_tokenizer: Any, universal_tokenizer_path: str, tmp_path: Path
) -> dict[str, Any]:
    """Settings with which every recipe runs on the tiny tokenizer."""
    words = ["[0]", "[4]", "1", "2", "9", "yes", "no", "Guess: 5", "Answer: Bern"]
    allowed = {t for word in words for t in universal_tokenizer.encode(word, add_special_tokens=False)}
    allowed.add(universal_tokenizer.convert_tokens_to_ids("<|im_end|>"))
    fake_service.allowed = np.asarray(sorted(allowed))
    return {
        "model_name": universal_tokenizer_path,
        "renderer_name": "qwen3_instruct",
        "log_path": str(tmp_path / "run"),
        "max_steps": 2,
    }


CHAT = {"batch_size": 8, "max_length": 96}
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "chat_sl.train": ("CLIConfig", {"dataset": "example", **CHAT}, 3),
    "sl_loop": ("Config", {"dataset": "example", **CHAT}, 2),
    "rl_loop": ("Config", {"env": "arithmetic", "batch_size": 2, "group_size": 4, "max_tokens": 3}, 2),
    "math_rl.train": ("CLIConfig", {"groups_per_batch": 2, "group_size": 4, "max_tokens": 3}, 2),
    "multiplayer_rl.guess_number.train": (
        "CLIConfig",
        {"batch_size": 2, "group_size": 2, "max_tokens": 6, "largest": 9, "num_test": 2},
        2,
    ),
    "multiplayer_rl.twenty_questions.train": (
        "CLIConfig",
        {
            "batch_size": 2,
            "group_size": 2,
            "max_tokens": 4,
            "eval_every": 0,
            "answerer_renderer_name": "qwen3_instruct",
        },
        2,
    ),
    "multiplayer_rl.text_arena.train": (
        "CLIConfig",
        {"batch_size": 4, "num_test_datapoints": 2, "max_tokens": 4, "test_opponent": "random"},
        2,
    ),
    "preference.shorter.train": ("CLIConfig", {"batch_size": 2, "group_size": 4, "max_tokens": 4, "eval_every": 0}, 2),
    "preference.dpo.train": ("CLIConfig", {"dataset": "example", "batch_size": 4, "max_length": 96}, 2),
    "distillation.off_policy_reasoning": ("CLIConfig", {"dataset": "example", **CHAT}, 2),
    "search_tool.train": ("CLIConfig", {"batch_size": 2, "group_size": 2, "max_tokens": 8}, 2),
    "sdft.train": (
        "CLIConfig",
        {"dataset": "example", "groups_per_batch": 2, "max_tokens": 6, "topk": 3, "eval_every": 0},
        2,
    ),
}


@pytest.mark.parametrize("module", sorted(CASES))
async def test_recipe_runs_and_writes_its_metrics(module: str, common: dict[str, Any], tmp_path: Path) -> None:
    config_name, settings, count = CASES[module]
    if module == "multiplayer_rl.twenty_questions.train":
        settings = {**settings, "answerer_model_name": common["model_name"]}
    await run(module, config_name, "main" if config_name == "Config" else "cli_main", **{**common, **settings})
    found = rows(tmp_path / "run")
    assert len(found) == count and all("step" in row for row in found)
    final = json.loads((tmp_path / "run" / "checkpoints.jsonl").read_text().splitlines()[-1])
    assert final["final"] is True and final["sampler_path"]


async def test_distillation_recipes_log_the_teacher_kl(common: dict[str, Any], tmp_path: Path) -> None:
    name = common["model_name"]
    shared = {"group_size": 2, "max_tokens": 4, "eval_every": 0}
    await run(
        "distillation.on_policy_distillation",
        "CLIConfig",
        "cli_main",
        **{**common, **shared, "dataset": "example", "teacher_model": name, "groups_per_batch": 2},
    )
    assert "teacher_kl" in rows(tmp_path / "run")[0]
    await run(
        "distillation.on_policy_multi_teacher",
        "CLIConfig",
        "cli_main",
        **{
            **common,
            **shared,
            "log_path": str(tmp_path / "two"),
            "deepmath_dataset": "example",
            "tulu3_dataset": "example",
            "deepmath_teacher_model": name,
            "tulu3_teacher_model": name,
            "deepmath_groups_per_batch": 1,
            "tulu3_groups_per_batch": 1,
        },
    )
    assert {"teacher_kl/dataset_0", "teacher_kl/dataset_1"} <= set(rows(tmp_path / "two")[0])


async def test_rubric_and_prompt_distillation_make_their_data_first(common: dict[str, Any], tmp_path: Path) -> None:
    generate = importlib.import_module(RECIPES + "rubric.generate_data")
    train, test = str(tmp_path / "train.jsonl"), str(tmp_path / "test.jsonl")
    generate.cli_main(generate.Config(train_path=train, test_path=test, num_train=8, num_test=2))
    await run(
        "rubric.train",
        "CLIConfig",
        "cli_main",
        **{
            **common,
            "grader_llm_name": common["model_name"],
            "grader_renderer_name": "qwen3_instruct",
            "train_jsonl_path": train,
            "test_jsonl_path": test,
            "groups_per_batch": 2,
            "max_tokens": 3,
            "eval_every": 1,
        },
    )
    assert (
        "env/all/rubric_score" in rows(tmp_path / "run")[0] and "test/env/all/rubric_score" in rows(tmp_path / "run")[0]
    )
    data = tmp_path / "pd.jsonl"
    data.write_text(
        "\n".join(
            json.dumps(
                {"messages": [{"role": "user", "content": f"t{i}"}, {"role": "assistant", "content": "Language: en"}]}
            )
            for i in range(8)
        )
    )
    await run(
        "prompt_distillation.train",
        "CLIConfig",
        "cli_main",
        **{**common, "file_path": str(data), "batch_size": 4, "log_path": str(tmp_path / "pd")},
    )
    assert "train_mean_nll" in rows(tmp_path / "pd")[0]


async def test_the_three_stages_of_rlhf_run_after_one_another(common: dict[str, Any], tmp_path: Path) -> None:
    await run(
        "preference.rlhf.rlhf_pipeline",
        "CLIConfig",
        "cli_main",
        base_model=common["model_name"],
        renderer_name="qwen3_instruct",
        log_path=str(tmp_path / "rlhf"),
        sft_dataset="example",
        comparisons="example",
        batch_size=8,
        rl_batch_size=2,
        rl_max_tokens=4,
        max_steps=2,
        eval_comparisons=2,
        eval_every=2,
        max_length=256,
    )
    for stage in ("sft", "rm", "rl"):
        assert rows(tmp_path / "rlhf" / stage)
    assert "win_rate" in rows(tmp_path / "rlhf" / "rl")[0]


async def test_short_answers_win_in_a_run_that_is_built_from_parts(universal_tokenizer_path: str) -> None:
    from tinker_cookbook.preference.types import Comparison
    from tinker_cookbook.recipes.preference.shorter import env
    from tinker_cookbook.renderers import Message
    from tinker_cookbook.rl.preference_envs import PairwisePreferenceGroupBuilder, PairwisePreferenceRLDatasetBuilder

    builder = PairwisePreferenceRLDatasetBuilder(
        comparison_builder=env.ShorterComparisonBuilder(),
        batch_size=32,
        policy_renderer_name="qwen3_instruct",
        policy_model_name=universal_tokenizer_path,
        group_size=4,
        preference_model_builder=env.ShorterPreferenceModelBuilder(),
    )
    dataset, held_out = await builder()
    assert len(dataset) == 32 and held_out is None
    for batch in (0, 31):
        groups = [group for group in dataset.get_batch(batch) if isinstance(group, PairwisePreferenceGroupBuilder)]
        assert len(groups) == 32
        for index, group in enumerate(groups):
            assert group.convo_prefix == [{"role": "user", "content": env.PROMPTS[index % len(env.PROMPTS)]}]
    long, short = ([Message(role="assistant", content=text)] for text in ("a long answer", "short"))
    for first, second, reward in ((long, short, 1.0), (short, long, -1.0), (short, short, 0.0)):
        assert await groups[0].preference_model(Comparison(groups[0].convo_prefix, first, second)) == reward


def test_image_recipe_refuses_with_the_reason() -> None:
    recipe = importlib.import_module(RECIPES + "vlm_classifier.train")
    with pytest.raises(ConfigurationError, match="image input"):
        recipe.cli_main(recipe.CLIConfig())


def test_unknown_recipes_and_settings_are_refused_with_the_nearest_name() -> None:
    wrong = CliRunner().invoke(cli.main, ["recipe", "math_rll"])
    assert wrong.exit_code == 1 and "'math_rl'" in wrong.output
    done = subprocess.run(
        [sys.executable, "-m", RECIPES + "math_rl.train", "group_sise=4"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0 and "group_size" in done.stderr + done.stdout


def test_every_recipe_is_listed_and_imports() -> None:
    listed = CliRunner().invoke(cli.main, ["recipe"]).output.split()
    assert {"sl_loop", "rl_loop", "sl_basic", "rl_basic", "chat_sl", "math_rl", "sdft", "search_tool"} <= set(listed)
    for name in cli.recipe_names():
        if not name.startswith(("swe", "ppo", "grpo", "eval_swe")):
            importlib.import_module(RECIPES + name)


async def test_bm25_ranks_documents_that_share_rare_words_first() -> None:
    from tinker_cookbook.recipes.search_tool.bm25 import BM25Index

    index = BM25Index(["the cat sat", "the dog ran", "the dog and the zebra"])
    assert [text for text, _ in index.search("zebra dog", 2)] == ["the dog and the zebra", "the dog ran"]
    assert index.search("unicorn") == []


def test_runs_are_listed_with_their_status(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text('{"step": 3, "x": 0.5}\n')
    (folder / "checkpoints.jsonl").write_text('{"name": "final", "final": true}\n')
    shown = CliRunner().invoke(cli.main, ["runs", str(tmp_path), "--metric", "x"]).output
    assert "completed" in shown and "step 3" in shown and "x=0.5" in shown


@pytest.mark.parametrize(
    ("recipe", "wrong", "said"),
    [
        ("math_rl", "loss_fn=pppo", "loss_fn='pppo' is unknown"),
        (
            "math_rl",
            "env=arithmetik",
            "env='arithmetik' is unknown; use one of arithmetic, math, gsm8k, polaris, deepmath",
        ),
        ("guess_number", "group_size=0", "group_size=0 must be at least 1"),
        ("chat_sl", "dataset=none.jsonl", "'none.jsonl' does not exist"),
        ("search_tool", "corpus_path=none.jsonl", "none.jsonl cannot be read"),
        ("prompt_distillation", "file_path=none.jsonl", "recipe prompt_distillation.create_data writes it"),
        ("shorter", "renderer_name=qwen3_instrct", "did you mean 'qwen3_instruct'"),
    ],
)
def test_what_cannot_work_ends_in_one_line_before_a_server_is_asked(
    recipe: str, wrong: str, said: str, tmp_path: Path, universal_tokenizer_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_BASE_URL", "http://127.0.0.1:9")
    settings = {"model_name": universal_tokenizer_path, "renderer_name": "qwen3_instruct", "log_path": "run"}
    name, value = wrong.split("=")
    words = [f"{key}={text}" for key, text in {**settings, name: value}.items()]
    module = RECIPES + cli.resolve_recipe(recipe)
    done = subprocess.run(
        [sys.executable, "-m", module, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("refused: ") and said in done.stderr
    assert not (tmp_path / "run" / "checkpoints.jsonl").exists()


def test_rows_may_hold_every_separator_of_unicode(tmp_path: Path) -> None:
    from tinker_cookbook.utils.file_utils import read_jsonl

    row = {"text": "a\u2028b\u0085c\x1ed"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row, ensure_ascii=False) + "\r\n\n", encoding="utf-8", newline="")
    assert read_jsonl(tmp_path / "rows.jsonl") == [row]


@pytest.mark.parametrize(
    "row",
    [
        {"tests": [{"input": "1", "output": "1"}]},
        {"question": "q"},
        {"question": "q", "tests": 3},
        {"question": "q", "tests": "[{"},
        {"question": "q", "tests": [None]},
    ],
)
def test_programming_problems_that_cannot_be_read_are_named_by_row(row: dict[str, Any], tmp_path: Path) -> None:
    from tinker_cookbook.exceptions import DataFormatError
    from tinker_cookbook.recipes.code_rl.env import load_problems

    good = {"question": "q", "tests": [{"input": "1", "output": 2}]}
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in (good, {**good, "tests": json.dumps(good["tests"])})))
    assert [problem.tests for problem in load_problems(str(path))] == [(("1", "2"),)] * 2
    path.write_text(json.dumps(good) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataFormatError, match="row 2: needs 'question' and 'tests'"):
        load_problems(str(path))
