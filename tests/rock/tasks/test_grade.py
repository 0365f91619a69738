"""The verifier of repository tasks on a small repository of this test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files

import pytest

GOOD = "def twice(x):\n    return 2 * x\n"
CONFIG = {
    "instance_id": "demo__demo-1",
    "FAIL_TO_PASS": ["test_twice.py::test_twice[3]", "test_twice.py::test_twice[4]"],
    "PASS_TO_PASS": ["test_old.py::test_zero"],
    "test_files": [
        {"source": "original/test_old.py", "target": "test_old.py"},
        {"source": "test_twice.py", "target": "test_twice.py"},
    ],
    "run": ["test_old.py", "test_twice.py"],
    "pytest_arguments": ["-c", "/dev/null"],
    "timeout_seconds": 20,
}


@pytest.fixture
def graded(tmp_path):
    """Makes repository and tests; grades a source; returns (exit code, reward, report, logs)."""
    tests, repository, logs = tmp_path / "tests", tmp_path / "repository", tmp_path / "logs"
    (tests / "original").mkdir(parents=True)
    (tests / "grade.py").write_text((files("rock.harbor.tasks") / "data" / "grade.py").read_text())
    (tests / "original" / "test_old.py").write_text(
        "from demo import twice\n\ndef test_zero():\n    assert twice(0) == 0\n"
    )
    (tests / "test_twice.py").write_text(
        "import pytest\nfrom demo import twice\n\n@pytest.mark.parametrize('x', [3, 4])\ndef test_twice(x):\n    assert twice(x) == 2 * x\n"
    )
    repository.mkdir()
    (repository / "demo.py").write_text("def twice(x):\n    return x\n")
    git = ["git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "start"]):
        subprocess.run([*git, *words], check=True)

    def grade(source, python=sys.executable, **changes):
        (tests / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        if source is not None:
            (repository / "demo.py").write_text(source)
        env = {**os.environ, "VERIFIER_LOGS": str(logs), "TASK_REPOSITORY": str(repository), "PYTHONPATH": ""}
        done = subprocess.run(
            [python, "-E", str(tests / "grade.py")], env=env, capture_output=True, text=True, timeout=120
        )
        reward = logs / "reward.txt"
        report = (
            json.loads((logs / "report.json").read_text())["demo__demo-1"] if (logs / "report.json").exists() else None
        )
        return done.returncode, float(reward.read_text()) if reward.exists() else None, report, logs

    return grade


def test_a_right_change_is_resolved_and_leaves_its_patch(graded):
    code, reward, report, logs = graded(GOOD)
    assert (code, reward, report["resolved"]) == (0, 1.0, True)
    assert report["patch_exists"] and "+    return 2 * x" in (logs / "patch.diff").read_text()
    assert report["tests_status"]["FAIL_TO_PASS"] == {"success": CONFIG["FAIL_TO_PASS"], "failure": []}


def test_no_change_is_not_resolved(graded):
    code, reward, report, _ = graded(None)
    assert (code, reward, report["resolved"], report["patch_exists"]) == (0, 0.0, False, False)
    assert report["tests_status"]["PASS_TO_PASS"]["success"] == CONFIG["PASS_TO_PASS"]


@pytest.mark.parametrize(
    "source",
    [
        "def twice(x):\n    return 2 * x + (x == 0)\n",
        "syntax error here\n",
        "import os\nos._exit(0)\n",
        "while True:\n    pass\n",
    ],
    ids=["breaks an old test", "does not compile", "leaves pytest early", "never ends"],
)
def test_a_wrong_change_gets_zero_and_not_no_evaluation(graded, source):
    code, reward, report, _ = graded(source, timeout_seconds=6)
    assert (code, reward, report["resolved"]) == (0, 0.0, False)


def test_tests_that_the_agent_rewrote_are_put_back(graded, tmp_path):
    (tmp_path / "repository" / "test_old.py").write_text("def test_zero():\n    pass\n")
    assert graded("def twice(x):\n    return 2 * x or 1\n")[1] == 0.0


def test_a_python_without_pytest_leaves_no_reward(graded, tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    code, reward, report, _ = graded(GOOD, python=str(bare / "bin" / "python"))
    assert (code, reward, report) == (1, None, None)
