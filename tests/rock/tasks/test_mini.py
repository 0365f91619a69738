"""The mini family: instances, splits, files, and a verifier that tells right from wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from rock.harbor.tasks import MINI_KINDS, mini_tasks, write_mini_tasks
from rock.harbor.tasks.folder import TaskFolderError
from rock.harbor.tasks.mini import HARD_KINDS

KINDS = (*MINI_KINDS, *HARD_KINDS)


@pytest.fixture(scope="module")
def mini_folder(tmp_path_factory):
    output = tmp_path_factory.mktemp("mini")
    write_mini_tasks(output, train_per_kind=2, heldout_per_kind=1, kinds=KINDS)
    return output


def grade(task, tmp_path, command):
    """Runs a command on the task's files, then its test.sh; returns exit code, reward and report."""
    work, logs = tmp_path / "work", tmp_path / "logs"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(task / "environment" / "work", work)
    subprocess.run(["bash", "-c", command], cwd=work, check=False, capture_output=True)
    variables = {"VERIFIER_LOGS": str(logs), "TASK_TESTS": str(task / "tests"), "TASK_WORK": str(work)}
    done = subprocess.run(
        ["bash", str(task / "tests" / "test.sh")], env={**os.environ, **variables}, capture_output=True
    )
    reward = logs / "reward.txt"
    report = json.loads((logs / "report.json").read_text()) if reward.exists() else None
    return done.returncode, float(reward.read_text()) if reward.exists() else None, report


@pytest.mark.parametrize("kind", KINDS)
def test_the_solution_gets_one_and_doing_nothing_gets_zero(mini_folder, tmp_path, kind):
    for task in mini_folder.glob(f"*/mini__{kind}-*"):
        solution = (task / "solution" / "solve.sh").read_text().splitlines()[-1]
        for command, expected in ((solution, 1.0), ("true", 0.0)):
            code, reward, report = grade(task, tmp_path, command)
            assert (code, reward) == (0, expected), (task.name, command)
            entry = report[task.name]
            assert entry["resolved"] is (expected == 1.0) and entry["patch_successfully_applied"]
            assert bool(entry["tests_status"]["FAIL_TO_PASS"]["failure"]) is (expected == 0.0)


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("create", "touch *"),
        ("rename", "cp *.txt {other}"),
        ("remove", "rm -f *"),
        ("append", "echo wrong >> *.txt"),
        ("replace", "rm *.txt"),
    ],
)
def test_a_command_that_does_half_of_the_work_gets_zero(mini_folder, tmp_path, kind, command):
    task = next((mini_folder / "train").glob(f"mini__{kind}-000"))
    other = (task / "tests" / "checks").read_text().split()[1]
    assert grade(task, tmp_path, command.format(other=other))[1] == 0.0


def test_a_verifier_without_its_checks_leaves_no_reward(mini_folder, tmp_path):
    task = tmp_path / "task"
    shutil.copytree(mini_folder / "train" / "mini__create-000", task)
    (task / "tests" / "checks").unlink()
    code, reward, _ = grade(task, tmp_path, "true")
    assert (code, reward) == (1, None)


def test_instances_are_the_same_every_time_and_differ_from_one_another():
    first, again = mini_tasks("train", 8), mini_tasks("train", 8)
    assert first == again
    assert len({task.task_id for task in first}) == len(first) == 8 * len(MINI_KINDS)
    assert len({task.instruction for task in first}) > 0.9 * len(first)
    assert all(
        task.instruction not in [text for text, _ in task.examples] and len(task.examples) == 4 for task in first
    )


def test_the_splits_share_no_name():
    def names(split):
        words = set()
        for task in mini_tasks(split, 20, KINDS):
            words |= {*task.files, *task.expected, *task.folders}
        return words - {""}

    assert not names("train") & names("heldout")


def test_writing_again_changes_nothing_and_other_content_is_never_overwritten(tmp_path):
    write_mini_tasks(tmp_path, train_per_kind=1, heldout_per_kind=0, kinds=["create"])
    task = tmp_path / "train" / "mini__create-000"
    before = (task / "task-source.json").stat().st_mtime_ns
    write_mini_tasks(tmp_path, train_per_kind=1, heldout_per_kind=0, kinds=["create"])
    assert (task / "task-source.json").stat().st_mtime_ns == before
    (task / "instruction.md").write_text("mine")
    with pytest.raises(TaskFolderError, match="differs"):
        write_mini_tasks(tmp_path, train_per_kind=1, heldout_per_kind=0, kinds=["create"])
    assert (task / "instruction.md").read_text() == "mine"


def test_unknown_kinds_and_splits_are_refused_by_name():
    with pytest.raises(ValueError, match="'dance'"):
        mini_tasks("train", 1, ["dance"])
    with pytest.raises(ValueError, match="'test'"):
        mini_tasks("test", 1)
