"""Prepares one task and the control image of the sandboxes.

    $PY prepare_sandbox.py --rock-root $ROCK --task $TASK --task-id $TASK_ID --wheel $TASK/dist/rl_rock-*.whl

Leaves the task, unchanged, in `$TASK/assets/harbor-tasks/$TASK_ID/` and its origin with the checksum of every file in
`$TASK/sandbox-preparation/manifest.json`. Sources, in the order of `--source auto`: the public SWE-bench Verified tasks in
Harbor's format at a pinned commit (git), else the task rebuilt from a source release (`rock.harbor.tasks`).
`--source FOLDER` takes a folder that holds the task. What is there already is checked and reused.

The control image holds SWE-agent as one archive with a Python of its own, which an agent unpacks in the task's container; the
task's packages stay as they are. Its source is pinned: `--swe-agent` names a git URL, a tarball or a folder.

With `--profile local` there is no image: the task is rebuilt, and its environment is built as layers for local sandboxes in
`$TASK/assets/task-layers/`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

from option_parser import OptionParser
from outer_image import add_options, control_image
from preparation import PreparationError, checksums, digest, run

QS = Path(__file__).resolve().parent
PUBLIC_GIT = "https://github.com/laude-institute/harbor-datasets.git"
PUBLIC_COMMIT = "86723674f04e4209ac479d0fb75d9d9f44b4377e"
PUBLIC_PATH = "datasets/swebench-verified"
TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PARTS = ("instruction.md", "task.toml", "environment", "tests")


def main(arguments: list[str] | None = None) -> int:
    """Runs the preparation. Returns 0, or 2 after one sentence on what is wrong."""
    parser = OptionParser(
        prog="prepare_sandbox.py",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--rock-root", type=Path, default=QS.parents[1], help="checkout of this repository")
    parser.add_argument("--task", type=Path, required=True, help="work folder, $TASK")
    parser.add_argument("--task-id", required=True)
    parser.add_argument("--wheel", type=Path, required=True, help="the rl_rock wheel of setup.sh control")
    parser.add_argument("--source", default="auto", help="auto, public, rebuilt, or a folder of Harbor tasks")
    parser.add_argument("--git-url", default=PUBLIC_GIT, help="another place of the public tasks, e.g. a mirror")
    parser.add_argument("--git-commit", default=PUBLIC_COMMIT)
    parser.add_argument("--profile", choices=["gpu", "local"], default="gpu", help="local: local sandboxes, no image")
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        manifest = prepare(options)
    except PreparationError as error:
        print(f"prepare_sandbox.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"prepare_sandbox.py: {error.filename or options.task}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("prepare_sandbox.py: interrupted; run it again to go on", file=sys.stderr)
        return 130
    print(
        f"task {options.task_id}: {manifest['source']['kind']}, {len(manifest['files'])} files, sha256 {manifest['sha256'][:16]}"
    )
    print(f"control image: {manifest['control_image']['state']}")
    return 0


def prepare(options: argparse.Namespace) -> dict[str, Any]:
    """Fetches the task, builds the image, writes the manifest and returns it.

    Raises:
        PreparationError: see the message.
    """
    if not TASK_ID.fullmatch(options.task_id):
        raise PreparationError(f"--task-id {options.task_id!r} is no task id; give one like sympy__sympy-19637")
    check_wheel(options.wheel)
    check_writable(options.task)
    manifest_file: Path = options.task / "sandbox-preparation" / "manifest.json"
    known = read_manifest(manifest_file)
    target: Path = options.task / "assets" / "harbor-tasks" / options.task_id
    entry = known.get(options.task_id)
    if target.exists():
        if entry is None:
            raise PreparationError(
                f"{target} exists but {manifest_file} does not list it; remove the folder and run this again"
            )
        if checksums(target) != entry["files"]:
            raise PreparationError(f"{target} is not what was prepared (a file changed); remove it and run this again")
        source = entry["source"]
    else:
        source = fetch(options, target)
    files = checksums(target)
    entry = {
        "task_id": options.task_id,
        "source": source,
        "files": files,
        "sha256": digest(json.dumps(files, sort_keys=True).encode()),
        "wheel": {"name": options.wheel.name, "sha256": digest(options.wheel.read_bytes())},
        "control_image": entry["control_image"] if entry else {"name": None, "state": "not built yet"},
        "profile": options.profile,
        "prepared_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    # Before the image as well: an interrupted build takes up again with the task that it has.
    write_json(manifest_file, {**entry, "tasks": {**known, options.task_id: entry}})
    entry["control_image"] = image(options, entry["control_image"])
    write_json(manifest_file, {**entry, "tasks": {**known, options.task_id: entry}})
    return entry


def fetch(options: argparse.Namespace, target: Path) -> dict[str, Any]:
    """Puts the task at `target` in one rename and says where it came from."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=target.parent) as scratch:
        folder = Path(scratch) / options.task_id
        if options.source == "auto" and options.profile == "local":
            source = rebuilt(options.task_id, folder)
        elif options.source == "auto":
            try:
                source = from_git(options, Path(scratch), folder)
            except PreparationError as error:
                print(f"the public task cannot be fetched ({error}); rebuilding it from a source release", flush=True)
                source = rebuilt(options.task_id, folder)
        elif options.source == "public":
            source = from_git(options, Path(scratch), folder)
        elif options.source == "rebuilt":
            source = rebuilt(options.task_id, folder)
        else:
            source = from_folder(Path(options.source), options.task_id, folder)
        missing = [part for part in PARTS if not (folder / part).exists()]
        if missing:
            raise PreparationError(f"the task {options.task_id} has no {', '.join(missing)}; choose another --source")
        os.rename(folder, target)
    return source


def from_git(options: argparse.Namespace, scratch: Path, folder: Path) -> dict[str, Any]:
    """The public task: only its own files are fetched."""
    if shutil.which("git") is None:
        raise PreparationError("git is not installed; run: sudo apt-get install git")
    clone = scratch / "clone"
    path = f"{PUBLIC_PATH}/{options.task_id}"
    git = ["git", "-C", str(clone), "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=20"]
    run(["git", "init", "--quiet", str(clone)])
    run([*git, "remote", "add", "origin", options.git_url])
    run([*git, "sparse-checkout", "set", "--no-cone", f"/{path}/"])
    run([*git, "fetch", "--quiet", "--depth", "1", "--filter=blob:none", "origin", options.git_commit])
    run([*git, "checkout", "--quiet", options.git_commit])
    if not (clone / path).is_dir():
        raise PreparationError(
            f"{options.git_url} has no task {options.task_id} at {options.git_commit[:12]}; check the task id"
        )
    shutil.move(str(clone / path), folder)
    return {"kind": "public", "url": options.git_url, "commit": options.git_commit, "path": path}


def rebuilt(task_id: str, folder: Path) -> dict[str, Any]:
    """The task rebuilt from a source release of the package index."""
    from rock.harbor.tasks import REPOSITORY_TASKS, build_repository_task

    if task_id not in REPOSITORY_TASKS:
        raise PreparationError(
            f"task {task_id} can be had from the public data set only; rebuilt ones are: {', '.join(sorted(REPOSITORY_TASKS))}"
        )
    try:
        built = build_repository_task(task_id, folder.parent)
    except (RuntimeError, ValueError) as error:
        raise PreparationError(f"task {task_id} cannot be rebuilt: {error}") from error
    if built != folder:
        os.rename(built, folder)
    return {"kind": "rebuilt", "by": "rock.harbor.tasks", "release": REPOSITORY_TASKS[task_id].archive.file_name}


def from_folder(source: Path, task_id: str, folder: Path) -> dict[str, Any]:
    """The task out of a folder on this machine: the task itself or one that holds it."""
    for candidate in (source / task_id, source):
        if candidate.name == task_id and (candidate / "task.toml").is_file():
            shutil.copytree(candidate, folder, symlinks=True)
            return {"kind": "folder", "path": str(candidate.resolve())}
    raise PreparationError(f"--source {source} is none of auto, public, rebuilt, and no folder that holds {task_id}")


def check_wheel(wheel: Path) -> None:
    """Raises PreparationError unless it is a wheel of rl-rock without Tinker modules."""
    if not wheel.is_file() or not re.fullmatch(r"rl_rock-.*\.whl", wheel.name):
        raise PreparationError(
            f"--wheel {wheel} is no rl_rock wheel; run setup.sh control and give $TASK/dist/rl_rock-*.whl"
        )
    try:
        names = zipfile.ZipFile(wheel).namelist()
    except zipfile.BadZipFile as error:
        raise PreparationError(f"--wheel {wheel} is broken ({error}); run setup.sh control again") from error
    if any(name.startswith("tinker") for name in names):
        raise PreparationError(f"--wheel {wheel} holds Tinker modules; build it with setup.sh control")


def check_writable(folder: Path) -> None:
    """Raises PreparationError unless the work folder is there, or can be made, and can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreparationError(f"--task {folder} cannot be made ({error.strerror}); choose another folder") from error
    if not os.access(folder, os.W_OK):
        raise PreparationError(f"--task {folder} cannot be written; choose another folder")


def image(options: argparse.Namespace, known: dict[str, Any]) -> dict[str, Any]:
    """The control image, or for local sandboxes the layers of the task's environment."""
    if options.profile == "gpu":
        return control_image(options, known)
    task = options.task / "assets" / "harbor-tasks" / options.task_id
    store = options.task / "assets" / "task-layers"
    run([sys.executable, "-m", "rock.harbor.tasks", "prebuild", str(task), "--store", str(store)], timeout=1800)
    return {"name": None, "state": "none (local sandboxes need no image)"}


def read_manifest(path: Path) -> dict[str, Any]:
    """The tasks that were prepared before, by id."""
    if not path.is_file():
        return {}
    return dict(json.loads(path.read_text(encoding="utf-8")).get("tasks") or {})


def write_json(path: Path, data: Any) -> None:
    """Writes a file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    os.replace(part, path)


if __name__ == "__main__":
    sys.exit(main())
