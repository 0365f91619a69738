"""Where a task comes from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

GIT_SECONDS = 300


class DatasetError(RuntimeError):
    """A task or a dataset cannot be had; the message names what and the fix."""


class TaskSource(Protocol):
    """Copies one task, unchanged, into a folder that does not exist yet."""

    def copy(self, target: Path, scratch: Path) -> None: ...

    def describe(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class GitSource:
    """A task of a git repository at a pinned commit. ``path`` is the task's folder in the repository."""

    url: str
    commit: str
    path: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{7,64}", self.commit):
            raise DatasetError(f"commit {self.commit!r} is no commit id; pin one, not a branch")
        if os.path.isabs(self.path) or ".." in Path(self.path).parts:
            raise DatasetError(f"path {self.path!r} must be relative to the repository, without '..'")

    def copy(self, target: Path, scratch: Path) -> None:
        """Fetches the task's own files only."""
        if shutil.which("git") is None:
            raise DatasetError("git is not installed; run: apt-get install git")
        clone = scratch / "clone"
        git = ["git", "-C", str(clone), "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=20"]
        _run(["git", "init", "--quiet", str(clone)])
        _run([*git, "remote", "add", "origin", self.url])
        _run([*git, "sparse-checkout", "set", "--no-cone", f"/{self.path}/"])
        _run([*git, "fetch", "--quiet", "--depth", "1", "--filter=blob:none", "origin", self.commit])
        _run([*git, "checkout", "--quiet", "FETCH_HEAD"])
        folder = clone / self.path
        if not folder.is_dir():
            raise DatasetError(f"{self.url} has no folder {self.path!r} at {self.commit[:12]}; check the task's name")
        shutil.copytree(folder, target, symlinks=True)

    def describe(self) -> dict[str, Any]:
        return {"kind": "git", **asdict(self)}


@dataclass(frozen=True)
class FolderSource:
    """A task in a folder of this machine."""

    folder: Path

    def copy(self, target: Path, scratch: Path) -> None:
        if not self.folder.is_dir():
            raise DatasetError(f"{self.folder} is no folder")
        shutil.copytree(self.folder, target, symlinks=True)

    def describe(self) -> dict[str, Any]:
        return {"kind": "folder", "folder": str(self.folder.absolute())}


def _run(command: list[str]) -> None:
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, env=environment)
    except subprocess.TimeoutExpired as error:
        raise DatasetError(f"git did not end within {GIT_SECONDS} s; check the network and try again") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise DatasetError(f"git failed: {said[-1] if said else done.returncode}")
