"""Runs the tests marked ray and vllm in the environment that has both, from one that has not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.slow


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("test_fsdp_trainer.py", 4),
        ("test_gpu_smoke.py", 3),
        ("test_own_ray.py", 3),
        ("test_server_over_cluster.py", 5),  # two more where the official SDK is installed
        ("test_sleeping_replicas.py", 4),
        ("test_vllm_sampler.py", 9),
        ("test_wide_replica.py", 2),
    ],
)
def test_the_cluster_tier_passes_in_its_own_environment(
    run_in_cluster_environment: Callable[..., None], name: str, least: int
) -> None:
    run_in_cluster_environment(HERE / name, "-m", "(ray or vllm) and not nightly", least=least, seconds=900)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_the_rest_of_the_cluster_tier_passes_in_its_own_environment(
    run_in_cluster_environment: Callable[..., None],
) -> None:
    file = HERE / "test_server_over_cluster.py"
    run_in_cluster_environment(file, "-m", "(ray or vllm) and nightly", least=3, seconds=1400)
