"""Every notebook runs from top to bottom."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
TUTORIALS = REPOSITORY / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("[0-9]*.py"))
EXPECTED = [
    "101",
    "102",
    "103",
    "104",
    "201",
    "202",
    "203",
    "204",
    "301",
    "302",
    "303",
    "304",
    "401",
    "402",
    "403",
    "404",
    "405",
    "406",
    "407",
    "501",
    "502",
    "503",
]


def run_notebook(path: Path, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(path)], env=environment, cwd=folder, capture_output=True, text=True, timeout=200
    )


def test_there_is_a_notebook_for_each_topic_and_the_overview_links_it() -> None:
    assert [path.name[:3] for path in NOTEBOOKS] == EXPECTED
    overview = (TUTORIALS / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\d\w+\.py)\)", overview) == [path.name for path in NOTEBOOKS]


def test_marimo_finds_no_fault_in_the_notebooks(tmp_path: Path) -> None:
    pytest.importorskip("marimo")
    command = [sys.executable, "-m", "marimo", "check", "--strict", *map(str, NOTEBOOKS)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebook_runs_from_top_to_bottom(
    path: Path, tutorial_environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``python notebook.py`` does, but in this process, which has imported torch and marimo already."""
    pytest.importorskip("marimo")
    for name in ("TINKER_BASE_URL", "TINKER_MODELS_DIR", "MPLBACKEND"):
        monkeypatch.setenv(name, tutorial_environment[name])
    monkeypatch.delenv("TINKER_TUTORIAL_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TUTORIALS))
    monkeypatch.delitem(sys.modules, "backend", raising=False)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        import matplotlib.pyplot as plt

        plt.close("all")
    assert not list(tmp_path.iterdir()), "a notebook writes into the current folder"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_notebook_starts_a_server_of_its_own_and_leaves_none_behind(tutorial_models: Path, tmp_path: Path) -> None:
    pytest.importorskip("marimo")
    environment = {**os.environ, "TINKER_MODELS_DIR": str(tutorial_models), "MPLBACKEND": "Agg"}
    for name in ("TINKER_BASE_URL", "TINKER_TUTORIAL_MODEL"):
        environment.pop(name, None)
    done = run_notebook(TUTORIALS / "101_hello_tinker.py", environment, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = re.search(r"http://127\.0\.0\.1:(\d+)", done.stdout)
    assert found is not None
    listening = {line.split()[1].split(":")[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]}
    ours = f"{int(found.group(1)):04X}"
    states = [line.split()[3] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if ours in line.split()[1]]
    assert ours not in listening or "0A" not in states


def test_an_unknown_model_is_refused_with_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio
    import importlib.util

    spec = importlib.util.spec_from_file_location("tutorial_backend", TUTORIALS / "backend.py")
    assert spec is not None and spec.loader is not None
    backend = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tutorial_backend", backend)
    spec.loader.exec_module(backend)
    monkeypatch.delenv("TINKER_BASE_URL", raising=False)
    with pytest.raises(ValueError, match="model='huge': choose one of tiny, smollm2"):
        asyncio.run(backend.connect("huge"))
