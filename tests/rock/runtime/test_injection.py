"""The rocklet's own Python in a container: nothing of the image is hidden by it, and nothing of the image leads it astray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[3] / "rock" / "src"
PACKAGES = next(path for path in sys.path if path.endswith("site-packages"))
SYSTEM = "/usr/bin/python3"
RECIPE = """
FROM rock-test:base
ENV PYTHONPATH=/testbed PYTHONHOME=/nowhere LD_LIBRARY_PATH=/testbed/lib
RUN echo 'NAME = "of the image"' > /usr/lib/python3/dist-packages/marker.py && mkdir -p /testbed/rock /testbed/lib \
 && for name in asyncio json httpx rock/__init__ sitecustomize; do echo 'raise SystemExit("a module of the task")' > /testbed/$name.py; done
WORKDIR /testbed
"""


@pytest.fixture(scope="module")
def system_python() -> str:
    """The system's Python, whose prefix /usr every image has too; it finds our packages by PYTHONPATH."""
    probe = "import sys; print(sys.base_prefix, *sys.version_info[:2])"
    found = subprocess.run([SYSTEM, "-c", probe], capture_output=True, text=True)
    if found.stdout.split() != ["/usr", *map(str, sys.version_info[:2])]:
        pytest.skip(f"the system has no Python {sys.version_info[0]}.{sys.version_info[1]} with the prefix /usr")
    return SYSTEM


def test_an_own_python_needs_nothing_of_its_place_and_its_children_do_not_see_its_libraries(tmp_path: Path) -> None:
    home = tmp_path / "own"
    made = [sys.executable, "-m", "rock.runtime.own_python", str(home)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    subprocess.run(made, check=True, timeout=100, env=environment, capture_output=True)
    program = "import json, os, ssl, sqlite3, ctypes, subprocess, sys; child = subprocess.run(['sh', '-c', 'echo ${LD_LIBRARY_PATH-none}'], "
    program += "capture_output=True, text=True).stdout.strip(); print(json.dumps([sys.prefix, ssl.__file__, child]))"
    for variables, seen in (({}, "none"), ({"LD_LIBRARY_PATH": "/task/lib"}, "/task/lib")):
        done = subprocess.run([home / "bin/python", "-c", program], capture_output=True, text=True, env=variables)
        assert done.returncode == 0, done.stderr
        prefix, module, child = json.loads(done.stdout)
        assert prefix == f"{home}/python" and module.startswith(f"{home}/python/lib/") and child == seen
    again = subprocess.run(made, timeout=100, env=environment, capture_output=True, text=True)
    assert again.returncode == 2 and "holds a Python" in again.stderr


def test_a_python_whose_prefix_images_have_too_is_mounted_elsewhere(system_python: str, tmp_path: Path) -> None:
    program = (
        "import sys, json, pathlib; from rock.runtime.docker_injection import prepare_injection; "
        "made = prepare_injection(pathlib.Path(sys.argv[1])); print(json.dumps([made.mounts, made.command()]))"
    )
    environment = {"PYTHONPATH": f"{SOURCE}:{PACKAGES}", "PATH": "/usr/bin:/bin"}
    (tmp_path / "cwd").mkdir()
    done = subprocess.run(
        [system_python, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path / "cwd",
    )
    assert done.returncode == 0, done.stderr
    mounts, command = json.loads(done.stdout)
    targets = [target for _, target in mounts]
    assert not [target for target in targets if target.startswith("/usr")], targets
    assert {source for source, _ in mounts} <= {str(SOURCE), PACKAGES, *map(str, tmp_path.glob("python-*"))}
    assert command[0].startswith(f"{tmp_path}/python-") and "-I" in command


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("worker_python", ["own prefix", "prefix of the image"])
async def test_a_task_s_python_its_packages_and_variables_are_its_own(
    own_rock_stack: Any, hostile_image: str, docker_url: str, worker_python: str, request: pytest.FixtureRequest
) -> None:
    stack = own_rock_stack
    stack.runtime = "docker"
    stack.write_config(runtime={"type": "docker", "docker_url": docker_url})
    if worker_python == "prefix of the image":
        stack.python = request.getfixturevalue("system_python")
        stack.variables = {"PYTHONPATH": f"{SOURCE}:{PACKAGES}"}
    stack.start("worker")
    stack.start("admin")
    async with stack.sandbox(image=hostile_image) as sandbox:
        seen = await sandbox.execute("echo $PYTHONPATH $PYTHONHOME $LD_LIBRARY_PATH; pwd")
        assert seen.stdout == "/testbed /nowhere /testbed/lib\n/testbed\n"
        clean = {"PYTHONPATH": "", "PYTHONHOME": "", "PYTHONSAFEPATH": "1"}
        line = "cd / && unset PYTHONHOME PYTHONPATH && python3 -c 'import marker, sys; print(marker.NAME, sys.prefix)'"
        mine = await sandbox.execute(line, env=clean)
        assert mine.stdout == "of the image /usr\n", mine.stderr
        written = await sandbox.execute(
            "touch /usr/lib/python3/dist-packages/new.py /usr/local/lib/new && echo written"
        )
        assert written.stdout == "written\n", written.stderr


@pytest.fixture
def hostile_image(docker_url: str, tmp_path: Path) -> Iterator[str]:
    """An image whose working folder and variables would lead a Python that is not careful to the task's modules."""
    docker = pytest.importorskip("docker")
    (tmp_path / "Dockerfile").write_text(RECIPE)
    client = docker.DockerClient(base_url=docker_url, timeout=120)
    client.images.build(path=str(tmp_path), tag="rock-test:hostile", rm=True)
    yield "rock-test:hostile"
    client.images.remove("rock-test:hostile", force=True)
    client.close()
