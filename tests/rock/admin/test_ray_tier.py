"""Runs the tests of placement over Ray in the environment that has Ray, from one that has not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.namespaces
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sandboxes_are_placed_over_the_nodes_of_a_ray_cluster(run_in_cluster_environment: Callable[..., None]) -> None:
    run_in_cluster_environment(Path(__file__).with_name("test_ray_placement.py"), least=4, seconds=300)
