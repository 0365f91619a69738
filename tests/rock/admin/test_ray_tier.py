"""Runs the tests of placement over Ray in the environment that has Ray, from one that has not."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("test_ray_placement.py")


@pytest.mark.namespaces
@pytest.mark.slow
def test_sandboxes_are_placed_over_the_nodes_of_a_ray_cluster() -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("this environment has Ray and runs test_ray_placement.py itself")
    python = os.environ.get("TINKER_TEST_CLUSTER_PYTHON")
    if not python or not Path(python).is_file():
        pytest.skip("TINKER_TEST_CLUSTER_PYTHON names no Python with Ray (tests/cluster/install.sh makes one)")
    words = [python, "-m", "pytest", str(TESTS), "-rs", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        words, cwd=TESTS.parents[3], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate(timeout=250)
    finally:
        if process.poll() is None:  # it takes its nodes of Ray down itself when it is told to stop
            process.send_signal(signal.SIGINT)
            process.wait(40)
    assert process.returncode == 0, said[-8000:]
    assert " skipped" not in said and " passed" in said, said
