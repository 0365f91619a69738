"""Downloads of released sources and wheels with the user's own pip configuration (index, mirrors, find-links)."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DOWNLOAD_SECONDS = 300


class SourceError(RuntimeError):
    """A source could not be downloaded, or is not what it should be."""


@dataclass(frozen=True)
class SourceArchive:
    """A released source archive, told by its checksum."""

    project: str
    version: str
    file_name: str
    sha256: str


def default_cache() -> Path:
    """Where downloads are kept: ``~/.cache/rock/sources``."""
    return Path.home() / ".cache" / "rock" / "sources"


def download_archive(archive: SourceArchive, cache: Path) -> Path:
    """The archive's file in ``cache``, downloaded if need be.

    Raises:
        SourceError: the download failed or its checksum is wrong.
    """
    target = cache / archive.file_name
    if target.is_file() and file_digest(target) == archive.sha256:
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        _pip_download(
            ["--no-binary", archive.project, f"{archive.project}=={archive.version}"],
            Path(folder),
            f"the sources of {archive.project} {archive.version}",
        )
        found = [path for path in Path(folder).iterdir() if path.name.lower() == archive.file_name.lower()]
        if not found:
            names = ", ".join(sorted(path.name for path in Path(folder).iterdir())) or "nothing"
            raise SourceError(
                f"pip brought {names} for {archive.project} {archive.version}, expected {archive.file_name}"
            )
        digest = file_digest(found[0])
        if digest != archive.sha256:
            raise SourceError(
                f"{archive.file_name} has SHA-256 {digest}, expected {archive.sha256}; check the package index in pip's configuration"
            )
        found[0].replace(target)
    return target


def download_wheels(requirements: Sequence[str], python: str, cache: Path) -> list[Path]:
    """Wheels of exactly these pinned requirements for one Python version (like ``"3.11"``) and this machine.

    Raises:
        SourceError: one of them cannot be had.
    """
    key = hashlib.sha256("\n".join([python, platform.machine(), *requirements]).encode()).hexdigest()[:16]
    folder = cache / f"wheels-{key}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=cache))
        try:
            words = ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
            machine = platform.machine()
            for tag in (f"manylinux2014_{machine}", f"manylinux_2_17_{machine}", f"manylinux_2_28_{machine}"):
                words += ["--platform", tag]
            _pip_download([*words, *requirements], scratch, f"wheels for Python {python}")
            scratch.chmod(0o755)
            scratch.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != len(requirements):
        raise SourceError(
            f"{folder} holds {len(wheels)} wheels, expected {len(requirements)}; remove the folder and try again"
        )
    return wheels


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pip_download(words: Sequence[str], target: Path, what: str) -> None:
    command = [
        *_pip(),
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--dest",
        str(target),
        *words,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired:
        raise SourceError(
            f"pip did not bring {what} within {DOWNLOAD_SECONDS} s; check the network and pip's index"
        ) from None
    if done.returncode != 0:
        raise SourceError(f"pip could not bring {what}: {done.stderr.strip()[-1500:]}")


def _pip() -> list[str]:
    """A pip to run: of this Python, of the system's Python, or one that uv provides."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for program in ("pip3", "pip"):
        found = shutil.which(program)
        if found:
            return [found]
    uv = shutil.which("uv")
    if uv:
        return [uv, "tool", "run", "pip"]
    raise SourceError("no pip was found; install one (apt-get install python3-pip, or: python3 -m ensurepip)")
