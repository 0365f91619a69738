"""Runs the tests marked ray and vllm in the environment that has both, from one that has not."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


def run_tier(name: str, marks: str, least: int, seconds: float) -> None:
    """Passes when at least ``least`` tests of a file with these marks passed and none failed.

    A process, and so a Ray of its own, for each file.
    """
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("this environment has Ray and runs the tier itself")
    python = os.environ.get("TINKER_TEST_CLUSTER_PYTHON")
    if not python:
        pytest.skip("TINKER_TEST_CLUSTER_PYTHON is not set (tests/cluster/install.sh makes the environment)")
    done = subprocess.run(
        [python, "-m", "pytest", str(HERE / name), "-m", marks, "-rs", "--durations=0", "-p", "no:cacheprovider"],
        cwd=HERE.parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-12000:] + done.stderr[-2000:]
    print(done.stdout[-4000:])
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= least, done.stdout[-4000:]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "least"), [("test_fsdp_trainer.py", 4), ("test_server_over_cluster.py", 5), ("test_vllm_sampler.py", 9)]
)
def test_the_cluster_tier_passes_in_its_own_environment(name: str, least: int) -> None:
    run_tier(name, "(ray or vllm) and not nightly", least, seconds=840)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_the_rest_of_the_cluster_tier_passes_in_its_own_environment() -> None:
    run_tier("test_server_over_cluster.py", "(ray or vllm) and nightly", least=1, seconds=1440)
