"""The config folder of a run: what is read, what is refused, and where the output budget lives."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tinker_cookbook.swe import SettingError
from tinker_cookbook.swe.settings import read_settings
from tinker_cookbook.swe.tasks import TaskSource, family


def change(config: Path, name: str, edit) -> None:
    file = config / name
    data = yaml.safe_load(file.read_text())
    edit(data)
    file.write_text(yaml.safe_dump(data))


def test_budgets_model_and_task_come_from_the_three_files(config_dir):
    settings = read_settings(config_dir)
    assert settings.base_model == settings.tokenizer == "org/model"
    assert (settings.budget.max_input, settings.budget.max_output, settings.budget.context) == (800, 200, 1000)
    assert settings.job_seconds == 60
    assert settings.task_ids == ["demo__task-1"]


def test_a_model_folder_is_served_under_its_last_part(config_dir, tmp_path):
    (tmp_path / "models" / "Tiny").mkdir(parents=True)
    change(config_dir, "engine.yaml", lambda engine: engine.update(pretrain="../models/Tiny"))
    settings = read_settings(config_dir)
    assert settings.base_model == "Tiny"
    assert settings.tokenizer == str(tmp_path / "models" / "Tiny")


def test_max_tokens_sets_the_output_budget_in_all_places_at_once(config_dir):
    change(config_dir, "harbor.yaml", lambda h: h["agents"][0]["kwargs"].update(completion_kwargs='{"max_tokens": 50}'))
    with pytest.raises(SettingError, match="two output budgets"):
        read_settings(config_dir)
    settings = read_settings(config_dir, max_tokens=100)
    kwargs = settings.harbor_for("demo__task-1")["agents"][0]["kwargs"]
    assert settings.budget.max_output == kwargs["max_output_tokens"] == 100
    assert kwargs["completion_kwargs"] == '{"max_tokens": 100}'


def test_an_output_budget_over_the_context_is_refused(config_dir):
    with pytest.raises(SettingError, match="exceed the context of 1000"):
        read_settings(config_dir, max_tokens=300)


def test_a_task_folder_replaces_the_uploads_and_the_data_set(config_dir, tmp_path):
    other = tmp_path / "mini" / "mini-007"
    other.mkdir(parents=True)
    harbor = read_settings(config_dir).harbor_for(other)
    assert harbor["environment"]["uploads"] == [[str(other), "/opt/swe/harbor-tasks/mini-007"]]
    assert harbor["datasets"] == [{"path": "/opt/swe/harbor-tasks", "task_names": ["mini-007"], "n_tasks": 1}]


def test_an_unknown_task_is_refused_with_the_known_ones(config_dir):
    with pytest.raises(SettingError, match="demo__task-1"):
        read_settings(config_dir).harbor_for("other__task-2")


def test_a_missing_folder_names_the_script_that_writes_it(tmp_path):
    with pytest.raises(SettingError, match=r"configure\.py"):
        read_settings(tmp_path / "config")


def test_a_family_is_drawn_through_before_a_task_comes_again_and_the_same_for_the_same_seed(tmp_path):
    for number in range(5):
        (tmp_path / f"mini-{number}").mkdir()
        (tmp_path / f"mini-{number}" / "task.toml").write_text("")
    tasks = family(tmp_path)
    drawn = [TaskSource(tasks, 1).of_step(step) for step in range(10)]
    assert set(drawn[:5]) == set(drawn[5:]) == set(tasks)
    assert drawn == [TaskSource(tasks, 1).of_step(step) for step in range(10)]
    assert drawn != [TaskSource(tasks, 2).of_step(step) for step in range(10)]


def test_an_empty_family_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r"task\.toml"):
        family(tmp_path)
