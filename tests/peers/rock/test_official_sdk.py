"""The official rl-rock SDK drives our admin."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.peers, pytest.mark.namespaces, pytest.mark.slow]


def test_the_official_sdk_walks_through_a_sandbox_of_ours(peer_rock_url: str, peer_rock_python: str) -> None:
    walk = Path(__file__).with_name("walk.py")
    done = subprocess.run(
        [peer_rock_python, "-I", str(walk), peer_rock_url], capture_output=True, text=True, timeout=200
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, done.stderr[-2000:]
    seen = json.loads(lines[0].removeprefix("SEEN "))
    assert seen["alive"] is True and seen["phases"] == ["success", "success"]
    assert seen["execute"] == ["out\n", "err\n", 3]
    assert "cannot run the command" in seen["execute_missing"]
    assert seen["session"] == ["ready\n", 0, "/usr\n5\n"]
    assert "exit code 1" in seen["session_failure"]
    assert seen["nohup"][0].endswith("long\n") and seen["nohup"][1] == 0
    assert seen["read"] == "grün" and seen["upload"] is True and seen["uploaded"] == "uploaded"
    assert "stopped by request" in seen["after_stop"]
    assert "is not known to the local runtime" in seen["bad_image"]
