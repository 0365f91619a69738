"""Fetching one task and proving later that it is still the one that was fetched."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rock.datasets.source import DatasetError, TaskSource

MANIFEST = "public-harbor-task-source.json"
PARTS = ("instruction.md", "task.toml", "environment", "tests")
_TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class FetchedTask:
    """A task on disk. ``files`` maps relative paths to SHA-256; ``manifest`` lies beside the task, which stays unchanged."""

    task_id: str
    folder: Path
    manifest: Path
    source: dict[str, Any]
    files: dict[str, str]


def fetch_task(source: TaskSource, task_id: str, output: Path, expected: dict[str, str] | None = None) -> FetchedTask:
    """Puts a task at ``output/task_id`` in one rename, and its manifest beside it.

    Args:
        expected: SHA-256 by relative path; other content is refused.

    Raises:
        DatasetError: the source has no such task, the content is not the expected one, or the folder exists already.
    """
    if not _TASK_ID.fullmatch(task_id):
        raise DatasetError(f"task id {task_id!r} is no task id; give one like sympy__sympy-19637")
    target = output / task_id
    if target.exists():
        raise DatasetError(f"{target} exists and is never overwritten; remove it or choose another folder")
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=output) as scratch:
        fresh = Path(scratch) / task_id
        source.copy(fresh, Path(scratch))
        shutil.rmtree(fresh / ".git", ignore_errors=True)
        missing = [part for part in PARTS if not (fresh / part).exists()]
        if missing:
            raise DatasetError(f"the source of {task_id} has no {', '.join(missing)}; it is no task in Harbor's format")
        files = task_checksums(fresh)
        if expected is not None and files != expected:
            changed = sorted(name for name in {*files, *expected} if files.get(name) != expected.get(name))
            raise DatasetError(f"task {task_id} is not the expected one: {', '.join(changed[:5])} differ")
        manifest = output / f"{task_id}.{MANIFEST}"
        content = {"task_id": task_id, "source": source.describe(), "files": files}
        part = manifest.with_suffix(".part")
        part.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        os.rename(fresh, target)
        part.replace(manifest)
    return FetchedTask(task_id, target, manifest, source.describe(), files)


def verify_task(manifest: Path) -> FetchedTask:
    """Checks a fetched task against its manifest.

    Raises:
        DatasetError: the manifest cannot be read, or a file was changed, added or removed.
    """
    try:
        content = json.loads(manifest.read_text())
        task_id, files = content["task_id"], content["files"]
    except (OSError, ValueError, KeyError) as error:
        raise DatasetError(f"{manifest} is no manifest of a task: {error}") from error
    folder = manifest.parent / task_id
    found = task_checksums(folder)
    changed = sorted(name for name in {*files, *found} if files.get(name) != found.get(name))
    if changed:
        raise DatasetError(f"{folder} is not what was fetched: {', '.join(changed[:5])} differ; fetch it again")
    return FetchedTask(task_id, folder, manifest, content["source"], files)


def task_checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file, and of the target of every link, by relative path."""
    sums = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            sums[name] = hashlib.sha256(os.readlink(path).encode()).hexdigest()
        elif path.is_file():
            with path.open("rb") as file:
                sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums
