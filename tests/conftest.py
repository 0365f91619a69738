"""The order of the tests and their time: fast ones first, and slow ones only while there is time for them.

``TINKER_TEST_MINUTES`` (CI sets it) is the time after which no further test marked ``slow`` is started; those that are left
out are reported as skipped with that reason. Without it everything runs.
"""

from __future__ import annotations

import os
import time

import pytest

_STARTED = time.monotonic()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = os.environ.get("TINKER_TEST_MINUTES")
    if minutes is None or item.get_closest_marker("slow") is None:
        return
    passed = (time.monotonic() - _STARTED) / 60
    if passed > float(minutes):
        pytest.skip(f"{passed:.0f} minutes have passed, TINKER_TEST_MINUTES={minutes} leaves no time for slow tests")
