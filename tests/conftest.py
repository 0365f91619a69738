"""The order of the tests, which of them may run at once, and their time: fast ones first, and slow ones while there is time.

``TINKER_TEST_MINUTES`` (CI sets it) is the time after which no further test marked ``slow`` is started; those that are left
out are reported as skipped with that reason. Without it everything runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # What a shell starts in the background ignores SIGINT, and so would all that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
_STARTED = time.monotonic()
_LAST_WORDS = 60.0
"""Seconds that tests which are told to stop get to take down what they started."""

_GROUPS = {
    "cluster": ("cluster/", "rock/admin/test_ray_tier.py", "rock/admin/test_ray_placement.py"),
    "sandboxes": ("rock/", "e2e/", "peers/rock/", "cookbook/swe/", "cookbook/test_recipes_in_sandboxes.py"),
    "peers": ("peers/",),
}
"""Tests of one group share something of the machine (a Ray, a Docker daemon, an environment that they install)."""


def _group(nodeid: str) -> str:
    """The group of a test, else its file."""
    path = nodeid.split("::")[0].removeprefix("tests/")
    return next((name for name, parts in _GROUPS.items() if path.startswith(parts)), path)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first; among several processes the sandboxes, which take longest, begin."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _group(item.nodeid) != "sandboxes")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n 2`` a process of pytest-xdist gets a whole group or file at a time."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    config.option.loadscopereorder = False  # keeps the order of pytest_collection_modifyitems
    return ByGroup(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = os.environ.get("TINKER_TEST_MINUTES")
    if minutes is None or item.get_closest_marker("slow") is None:
        return
    passed = (time.monotonic() - _STARTED) / 60
    if passed > float(minutes):
        pytest.skip(f"{passed:.0f} minutes have passed, TINKER_TEST_MINUTES={minutes} leaves no time for slow tests")


@pytest.fixture
def run_in_cluster_environment() -> Callable[..., None]:
    """Runs a test file in the environment that has Ray and vLLM (``tests/cluster/install.sh``), from one that has not.

    ``run(file, *options, least=…, seconds=…)`` passes when at least ``least`` tests passed and none failed.
    """
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("this environment has Ray and runs these tests itself")
    python = os.environ.get("TINKER_TEST_CLUSTER_PYTHON")
    if not python or not Path(python).is_file():
        pytest.skip("TINKER_TEST_CLUSTER_PYTHON names no Python with Ray (tests/cluster/install.sh makes one)")

    def run(file: Path, *options: str, least: int, seconds: float) -> None:
        process = subprocess.Popen(
            [python, "-m", "pytest", str(file), *options, "-rs", "--durations=0", "-p", "no:cacheprovider"],
            cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        said, late = "", False
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if process.poll() is None:
                said += _stop(process)
        words = f"{file.name} ended with {process.returncode}{f', told to stop after {seconds:.0f} s' if late else ''}"
        assert process.returncode == 0 and not late, f"{words}:\n{said[-16000:]}"
        print(said[-4000:])
        passed = re.search(r"(\d+) passed", said)
        assert passed is not None and int(passed[1]) >= least, f"fewer than {least} tests passed:\n{said[-4000:]}"

    return run


def _stop(process: subprocess.Popen[str]) -> str:
    """Interrupts tests, which then take down what they started themselves; what they said."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=_LAST_WORDS)[0]
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]
