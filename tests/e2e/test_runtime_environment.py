"""The GPU environment gets what the image lacks, and what that needs, and moves nothing that the image has."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import packaging
import pytest
from packaging.requirements import Requirement

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment() -> ModuleType:
    """The script as a module."""
    path = CHECKOUT / "examples" / "tinker_quick_start" / "runtime_environment.py"
    spec = importlib.util.spec_from_file_location("runtime_environment", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    folder.mkdir(exist_ok=True)
    facts = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version!r}\n")
        lines = [f"Requires-Dist: {need}" for need in needs]
        wheel.writestr(
            f"{facts}/METADATA", "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines])
        )
        wheel.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{facts}/RECORD", "")


def make_environment(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(Path(packaging.__file__).parent, packages / "packaging")
    return folder / "bin" / "python"


def test_what_is_missing_is_added_with_what_it_needs_and_nothing_is_replaced(
    environment: ModuleType, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    make_wheel(
        wheels,
        "engine",
        "2.0",
        "helper>=2",
        "carrier",
        "torch>=9",
        "unused; extra == 'more'",
        "old; python_version < '3'",
    )
    make_wheel(wheels, "carrier", "1.0", "deep")
    make_wheel(wheels, "deep", "1.0")
    make_wheel(wheels, "present", "1.5")
    make_wheel(wheels, "stale", "3.0")
    for name, version in (("helper", "2.5"), ("torch", "9.9")):
        make_wheel(wheels, name, version)
    had = tmp_path / "had"
    for name, version in (("helper", "1.0"), ("present", "1.0"), ("stale", "1.0")):
        make_wheel(had, name, version)
    python = make_environment(tmp_path / "venv")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, *map(str, had.glob("*.whl"))], check=True)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("# first\nengine>=2\npresent>=1\nstale>=2  # too old there\ntorch>=8\n")
    install = [*pip, "--find-links", str(wheels)]
    added = environment.add_missing(requirements, str(python), install)
    assert sorted(added) == ["carrier", "deep", "engine>=2", "stale>=2"]
    versions = {name: version for name, (version, _) in environment.inventory(str(python)).items()}
    # A helper that the image has stays as it is, and torch is the image's alone.
    assert versions == {
        "engine": "2.0",
        "carrier": "1.0",
        "deep": "1.0",
        "stale": "3.0",
        "present": "1.0",
        "helper": "1.0",
    }
    assert environment.add_missing(requirements, str(python), install) == []
    requirements.write_text("nowhere\n")
    with pytest.raises(SystemExit, match="nowhere"):
        environment.add_missing(requirements, str(python), install)


def test_the_list_names_what_the_runtime_of_a_cluster_calls(environment: ModuleType) -> None:
    from tinker_backend.runtime.ray.versions import SUPPORTED

    lines = (CHECKOUT / "requirements_tinker.txt").read_text().splitlines()
    listed = {Requirement(line).name: Requirement(line) for line in lines if not line.startswith("#")}
    for name, (first, _) in SUPPORTED.items():
        if environment.PROTECTED.match(name):
            assert name not in listed, f"{name} is the image's"
        else:
            assert listed[name].specifier == Requirement(f"{name}>={first[0]}.{first[1]}").specifier
    text = environment.IMPORTS.splitlines()[1].removeprefix("import ")
    modules = {"yaml": "pyyaml", "zmq": "pyzmq"}
    imported = {modules.get(name.strip(), name.strip()) for name in text.split(",")} - {"json"}
    assert imported <= listed.keys()
