"""The three wheels build, install into an empty environment and import; the locks work behind any index."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"rl_rock": "rock", "rock_tinker": "rock-tinker", "tinker_backend": "tinker-backend"}


def uv() -> str:
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    if not found:
        pytest.skip("uv is not installed")
    return found


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    for folder in PACKAGES.values():
        command = [
            uv(),
            "build",
            "--quiet",
            "--wheel",
            "--no-build-isolation",
            "--python",
            sys.executable,
            "--out-dir",
            out,
        ]
        subprocess.run([*map(str, command), str(ROOT / folder)], check=True, timeout=120)
    return {name: next(out.glob(f"{name}-*.whl")) for name in PACKAGES}


def test_each_wheel_holds_its_own_packages_only_and_the_rock_wheel_no_tinker_module(wheels):
    tops = {
        name: {member.split("/")[0] for member in zipfile.ZipFile(wheel).namelist()}
        - {f"{wheel.name.split('-py3')[0]}.dist-info"}
        for name, wheel in wheels.items()
    }
    assert tops == {
        "rl_rock": {"rock"},
        "rock_tinker": {"tinker", "tinker_cookbook"},
        "tinker_backend": {"tinker_backend"},
    }


def test_wheels_are_typed_and_carry_their_data_files(wheels):
    members = set(zipfile.ZipFile(wheels["rock_tinker"]).namelist())
    assert {"tinker/py.typed", "tinker_cookbook/py.typed", "tinker_cookbook/templates/runtime.yaml"} <= members
    assert "rock/py.typed" in zipfile.ZipFile(wheels["rl_rock"]).namelist()
    assert "tinker_backend/py.typed" in zipfile.ZipFile(wheels["tinker_backend"]).namelist()


def test_versions_are_in_step(wheels):
    assert len({wheel.name.split("-")[1] for wheel in wheels.values()}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("rl_rock", ["rock", "rock.model_service"]),
        ("rock_tinker", ["tinker", "tinker.types", "tinker_cookbook"]),
        ("tinker_backend", ["tinker_backend", "tinker_backend.config"]),
    ],
)
def test_a_wheel_installs_into_an_empty_environment_and_imports_without_torch(wheels, tmp_path, name, modules):
    venv = tmp_path / "venv"
    subprocess.run(
        [uv(), "venv", "--quiet", "--no-config", "--python", sys.executable, str(venv)], check=True, timeout=60
    )
    python = str(venv / "bin" / "python")
    done = subprocess.run(
        [uv(), "pip", "install", "--quiet", "--no-config", "--python", python, str(wheels[name])],
        capture_output=True,
        text=True,
        timeout=240,
    )
    if done.returncode and re.search("dns error|connect|timed out", done.stderr, re.IGNORECASE):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    probe = (
        "import importlib, importlib.util, json, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(json.dumps({'torch': 'torch' in sys.modules, 'others': [n for n in ('rock', 'tinker', 'tinker_backend')"
        " if importlib.util.find_spec(n)]}))"
    )
    found = json.loads(
        subprocess.run([python, "-I", "-c", probe], capture_output=True, text=True, check=True, timeout=60).stdout
    )
    assert found == {"torch": False, "others": [modules[0]]}


LOCKS = [
    "rock-tinker/local/requirements.txt",
    "rock-tinker/local/requirements-harbor.txt",
    "rock-tinker/local/requirements-model.txt",
    "tests/requirements.txt",
]


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_every_package_with_hashes_and_names_no_index(lock):
    text = (ROOT / lock).read_text()
    assert "://" not in text and "index" not in text.lower().replace("index_", "")
    entries = re.findall(r"^([A-Za-z0-9._-]+)==\S+.*\\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n?)+)", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^[A-Za-z0-9._-]+==", text, re.MULTILINE)) > 0
    assert not any(name == "torch" or name.startswith("nvidia-") for name, _ in entries)


def test_the_uv_lock_knows_file_names_only():
    text = (ROOT / "rock-tinker/local/uv.lock").read_text()
    assert "://" not in text
    assert 'source = { registry = "wheelhouse" }' in text


def test_the_uv_lock_and_the_hash_lock_hold_the_same_versions():
    pinned = dict(
        re.findall(
            r"^([A-Za-z0-9._-]+)==(\S+?) ", (ROOT / "rock-tinker/local/requirements.txt").read_text(), re.MULTILINE
        )
    )
    locked = dict(
        re.findall(
            r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = \{ registry',
            (ROOT / "rock-tinker/local/uv.lock").read_text(),
        )
    )
    assert locked
    # A package with a version for each Python stands twice in both; the later one is compared.
    assert {name: version for name, version in locked.items() if pinned.get(name) != version} == {}


def test_the_control_lock_covers_every_dependency_that_the_packages_declare():
    import tomllib

    locked = set(
        re.findall(r"^([A-Za-z0-9._-]+)==", (ROOT / "rock-tinker/local/requirements.txt").read_text(), re.MULTILINE)
    )
    wanted: dict[str, str] = {}
    for folder, extras in (("rock", ["admin"]), ("rock-tinker", ["cookbook"]), ("tinker-backend", ["engine"])):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
        for requirement in (item for listed in lists for item in listed):
            name = re.split(r"[<>=!~ ;\[]", requirement)[0].lower().replace("_", "-")
            wanted[name] = folder
    # torch is installed apart, and a package of this repository is no dependency from an index.
    ours = {"torch", "rl-rock", "rock-tinker", "tinker-backend"}
    assert {name: folder for name, folder in wanted.items() if name not in locked | ours} == {}
