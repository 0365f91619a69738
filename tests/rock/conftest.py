"""Shared parts of the rock tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def rock_state() -> Iterator[Path]:
    """A short folder on a real disk (tmp_path can be a long path, and overlayfs cannot write on overlayfs)."""
    folder = Path(tempfile.mkdtemp(prefix="rock-", dir=os.environ.get("ROCK_TEST_STATE", "/var/tmp")))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
