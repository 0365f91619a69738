"""The command `rock` as users type it."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def _rock(*words: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rock.cli", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, **(env or {})},
    )


@pytest.mark.namespaces
def test_sandboxes_are_started_used_and_stopped_from_the_command_line(rock_stack: Any, tmp_path: Path) -> None:
    env = {"ROCK_BASE_URL": rock_stack.url}
    started = _rock("sandbox", "start", "--memory", "256m", env=env)
    sandbox_id = started.stdout.strip()
    assert started.returncode == 0 and sandbox_id, started.stderr
    ran = _rock("sandbox", "exec", sandbox_id, "echo out; echo err >&2; exit 7", env=env)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("out\n", "err\n", 7)
    (tmp_path / "f").write_text("content")
    assert _rock("sandbox", "upload", sandbox_id, str(tmp_path / "f"), "/srv/f", env=env).returncode == 0
    assert _rock("sandbox", "download", sandbox_id, "/srv/f", str(tmp_path / "g"), env=env).returncode == 0
    assert (tmp_path / "g").read_text() == "content"
    assert sandbox_id in _rock("sandbox", "list", "--state", "running", env=env).stdout
    assert '"state": "running"' in _rock("sandbox", "status", sandbox_id, env=env).stdout
    assert _rock("sandbox", "stop", sandbox_id, env=env).returncode == 0
    gone = _rock("sandbox", "exec", sandbox_id, "true", env=env)
    assert gone.returncode == 1 and "stopped by request" in gone.stderr and "Traceback" not in gone.stderr


@pytest.mark.namespaces
def test_the_examples_of_the_readme_run(rock_stack: Any) -> None:
    page = Path(__file__).parents[3].joinpath("rock", "README.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"(?ms)^```bash\n(id=.*?)^```", page)
    (program,) = re.findall(r"(?ms)^```python\n(.*?)^```", page)
    env = {**os.environ, "ROCK_BASE_URL": rock_stack.url, "PYTHON": sys.executable}
    lines = 'set -e; rock() { "$PYTHON" -m rock.cli "$@"; }\n' + commands
    shell = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, timeout=120, env=env)
    assert shell.returncode == 0 and "hello\n" in shell.stdout, shell.stderr
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0 and done.stdout.startswith("0 42"), done.stderr


def test_text_is_encrypted_and_decrypted_with_a_key_that_is_never_printed(tmp_path: Path) -> None:
    key = tmp_path / "key"
    made = _rock("crypto", "generate-key", "--file", str(key))
    assert made.returncode == 0 and stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text().strip() not in made.stdout + made.stderr
    assert _rock("crypto", "generate-key", "--file", str(key)).returncode == 1
    secret = _rock("crypto", "encrypt", "--key-file", str(key), stdin="grün\n").stdout.strip()
    assert "grün" not in secret
    assert _rock("crypto", "decrypt", "--key-file", str(key), stdin=secret).stdout == "grün\n"
    other = tmp_path / "other"
    _rock("crypto", "generate-key", "--file", str(other))
    assert "wrong key" in _rock("crypto", "decrypt", "--key-file", str(other), stdin=secret).stderr
    key.chmod(0o644)
    assert "chmod 600" in _rock("crypto", "encrypt", "--key-file", str(key), stdin="x").stderr


@pytest.mark.namespaces
def test_doctor_says_what_the_machine_can_do() -> None:
    said = _rock("doctor")
    assert said.returncode == 0 and "local sandboxes: yes" in said.stdout and "docker:" in said.stdout


def test_an_admin_that_cannot_be_reached_is_one_line() -> None:
    said = _rock("sandbox", "list", "--base-url", "http://127.0.0.1:1")
    (line,) = said.stderr.splitlines()
    assert said.returncode == 1 and "not reachable" in line and "rock admin start" in line


def test_images_are_defined_shown_and_removed(rock_state: Path) -> None:
    config = rock_state / "admin.yaml"
    config.write_text("state: {folder: state}\n")
    made = _rock("image", "define", "--config", str(config), "--bind", "/usr/share:/mnt", "--env", "A=1", "team/x:1")
    assert made.returncode == 0, made.stderr
    assert _rock("image", "list", "--config", str(config)).stdout.split() == ["local", "team/x:1"]
    assert '"A": "1"' in _rock("image", "show", "--config", str(config), "team/x:1").stdout
    _rock("image", "remove", "--config", str(config), "team/x:1")
    assert _rock("image", "list", "--config", str(config)).stdout.split() == ["local"]
