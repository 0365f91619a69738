"""Runs the tests of a repository task and writes report.json (as SWE-bench does) and reward.txt.

``config.json`` beside this file names the instance, the test files with their places in the repository, and the tests that must
pass. The reward is 1 when all of them pass and else 0. When the tests cannot be run at all (no pytest, no test files), this ends
with status 1 and leaves no reward.txt.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
LOGS = Path(os.environ.get("VERIFIER_LOGS", "/logs/verifier"))
REPOSITORY = Path(os.environ.get("TASK_REPOSITORY", "/testbed"))


def main() -> int:
    config = json.loads((TESTS / "config.json").read_text())
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    check_pytest(environment)
    patch = write_patch()
    for test_file in config["test_files"]:
        target = REPOSITORY / test_file["target"]
        source = TESTS / test_file["source"]
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    passed = run_tests(config, environment)
    report = make_report(config, passed, patch)
    resolved = report[config["instance_id"]]["resolved"]
    write("report.json", json.dumps(report, indent=2, sort_keys=True) + "\n")
    write("reward.txt", "1\n" if resolved else "0\n")
    print("resolved" if resolved else "not resolved")
    return 0


def check_pytest(environment: dict[str, str]) -> None:
    """Proves that this Python can run a test, so that later failures are the repository's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            "--rootdir",
            folder,
            folder,
        ]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit("cannot evaluate: pytest does not run here\n" + done.stdout + done.stderr)


def write_patch() -> bytes | None:
    """Leaves the change of the repository as patch.diff; None when git cannot tell."""
    try:
        git = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY)]
        subprocess.run([*git, "add", "--all", "--intent-to-add"], check=True, capture_output=True, timeout=120)
        done = subprocess.run([*git, "diff", "--no-color", "HEAD"], check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"no patch.diff: {error}")
        return None
    write("patch.diff", done.stdout.decode("utf-8", "replace"))
    return done.stdout


def run_tests(config: dict[str, Any], environment: dict[str, str]) -> set[str]:
    """Test ids that passed. A run that breaks off or lasts too long has passed none that it did not finish."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-q",
            "-rA",
            "--tb=short",
            "--junitxml",
            str(results),
        ]
        command += [*config["pytest_arguments"], *config["run"]]
        print("+", " ".join(command), flush=True)
        try:
            done = subprocess.run(command, cwd=REPOSITORY, env=environment, timeout=config["timeout_seconds"])
            print(f"pytest ended with status {done.returncode}")
        except subprocess.TimeoutExpired:
            print(f"the tests did not end within {config['timeout_seconds']} s")
        if not results.is_file():
            return set()
        try:
            cases = ElementTree.parse(results).getroot().iter("testcase")
        except ElementTree.ParseError:
            return set()
        passed = set()
        for case in cases:
            if any(child.tag in ("failure", "error", "skipped") for child in case):
                continue
            passed.add("{}.py::{}".format(case.get("classname", "").replace(".", "/"), case.get("name")))
        return passed


def make_report(config: dict[str, Any], passed: set[str], patch: bytes | None) -> dict[str, Any]:
    def split(names: list[str]) -> dict[str, list[str]]:
        return {"success": [n for n in names if n in passed], "failure": [n for n in names if n not in passed]}

    status: dict[str, Any] = {
        "FAIL_TO_PASS": split(config["FAIL_TO_PASS"]),
        "PASS_TO_PASS": split(config["PASS_TO_PASS"]),
    }
    resolved = not any(kind["failure"] for kind in status.values())
    status["FAIL_TO_FAIL"] = {"success": [], "failure": []}
    status["PASS_TO_FAIL"] = {"success": [], "failure": []}
    return {
        config["instance_id"]: {
            "patch_is_None": patch is None,
            "patch_exists": bool(patch),
            "patch_successfully_applied": True,
            "resolved": resolved,
            "tests_status": status,
        }
    }


def write(name: str, text: str) -> None:
    """Whole or not at all."""
    LOGS.mkdir(parents=True, exist_ok=True)
    scratch = LOGS / f".{name}.partial"
    scratch.write_text(text)
    scratch.replace(LOGS / name)


if __name__ == "__main__":
    sys.exit(main())
