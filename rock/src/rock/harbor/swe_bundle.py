"""SWE-agent as one archive: its source at a pinned state, its packages, and a Python of its own.

    python3.12 -m rock.harbor.swe_bundle --source GIT_URL|TARBALL|FOLDER [--commit SHA] [--sha256 HEX] [--packages FOLDER] --output FILE

Run it with the Python that shall be in the archive. A task's container needs nothing but tar and a C library that is not older
than this machine's, and its own packages are not touched: everything lies below /opt/sweagent and /opt/sweagent-*.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from rock.harbor.tarballs import extract_below
from rock.runtime.own_python import copy_python, write_site, write_start

HOME = "opt/sweagent"
VENV = "opt/sweagent-venv"
CONFIGS = "opt/sweagent-configs"
ROOTS = (HOME, VENV, CONFIGS)
MANIFEST = f"{HOME}/bundle.json"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECONDS = 1800
_SITE = """os.environ.setdefault("SWE_AGENT_CONFIG_DIR", "/opt/sweagent/source/config")
os.environ.setdefault("SWE_AGENT_TOOLS_DIR", "/opt/sweagent/source/tools")
os.environ.setdefault("SWE_AGENT_TRAJECTORY_DIR", "/opt/sweagent/trajectories")
"""
_SWEAGENT = """#!/bin/sh
exec /opt/sweagent-venv/bin/python -I -m sweagent.run.run "$@"
"""


class BundleError(Exception):
    """The archive cannot be made or must not be used; the message says why and what to do."""


def build_bundle(
    source: str,
    output: Path,
    commit: str | None = None,
    sha256: str | None = None,
    requirements: Path | None = None,
    packages: Path | None = None,
) -> dict[str, Any]:
    """Makes the archive and, beside it, OUTPUT.sha256.

    Args:
        source: git URL (then `commit` is needed), tarball, or folder.
        sha256: of the tarball, or of the folder's content (`tree_digest`); what does not match is refused.
        requirements: locked packages with hashes; None = what the source asks for, newest.
        packages: folder in which the source and all it asks for are installed already; nothing is installed then.

    Returns:
        The manifest.

    Raises:
        BundleError: see the message.
    """
    with tempfile.TemporaryDirectory(prefix="swe-bundle-") as scratch:
        root = Path(scratch) / "root"
        tree = root / HOME / "source"
        tree.parent.mkdir(parents=True)
        origin = fetch_source(source, tree, commit, sha256)
        check_source(tree, source)
        site = copy_python(root / HOME)
        if packages is None:
            _install(tree, site, requirements)
        elif not (packages / "sweagent").is_dir():
            raise BundleError(f"--packages {packages} has no sweagent: install the source there first")
        else:
            shutil.copytree(packages, site, symlinks=True, dirs_exist_ok=True)
        write_site(root / HOME, _SITE)
        write_start(root / VENV / "bin/python", f"/{HOME}")
        (root / VENV / "bin/sweagent").write_text(_SWEAGENT)
        (root / VENV / "bin/sweagent").chmod(0o755)
        (root / CONFIGS).mkdir()
        for config in (tree / "config").glob("default*.yaml"):
            shutil.copy(config, root / CONFIGS)
        (root / HOME / "trajectories").mkdir()
        manifest = {"format": 1, **origin, "python": sys.version.split()[0], "source_sha256": tree_digest(tree)}
        manifest["packages"] = sorted(path.name.removesuffix(".dist-info") for path in site.glob("*.dist-info"))
        (root / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        draft = output.with_name(f".{output.name}.part")
        with tarfile.open(draft, "w:gz", compresslevel=4) as archive:
            for name in ROOTS:
                archive.add(root / name, name, filter=_as_root)
        os.replace(draft, output)
    digest = file_digest(output)
    output.with_name(f"{output.name}.sha256").write_text(f"{digest}  {output.name}\n")
    return {**manifest, "sha256": digest}


def fetch_source(source: str, target: Path, commit: str | None, sha256: str | None) -> dict[str, Any]:
    """Puts the source at `target` and says where it came from.

    Raises:
        BundleError: it cannot be had, or is not what was pinned.
    """
    path = Path(source)
    if path.is_dir():
        shutil.copytree(path, target, symlinks=True, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        _same(f"the folder {source}", tree_digest(target), sha256)
        return {"kind": "folder", "source": path.name, "commit": commit}
    if path.is_file():
        _same(source, file_digest(path), sha256)
        check_archive(path, roots=None)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch, tarfile.open(path) as archive:
            extract_below(archive, Path(scratch))
            entries = list(Path(scratch).iterdir())
            inner = entries[0] if len(entries) == 1 and entries[0].is_dir() else Path(scratch)
            shutil.copytree(inner, target, symlinks=True)
        return {"kind": "tarball", "source": path.name, "commit": commit, "tarball_sha256": file_digest(path)}
    if "://" not in source and not source.startswith("git@"):
        raise BundleError(f"--source {source} is no folder, no file and no git URL")
    if commit is None or not _COMMIT.fullmatch(commit):
        raise BundleError(f"--commit {commit!r}: a git source is pinned by a full commit, 40 hexadecimal digits")
    _run(["git", "init", "--quiet", str(target)])
    stalled = ["-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=20"]
    _run(["git", "-C", str(target), *stalled, "fetch", "--quiet", "--depth", "1", source, commit])
    _run(["git", "-C", str(target), "checkout", "--quiet", commit])
    shutil.rmtree(target / ".git")
    if sha256 is not None:
        _same(f"{source} at {commit[:12]}", tree_digest(target), sha256)
    return {"kind": "git", "source": source, "commit": commit}


def check_source(tree: Path, name: str) -> None:
    """Raises BundleError unless the folder has the parts of SWE-agent's source."""
    for part in ("config/default.yaml", "tools", "pyproject.toml"):
        if not (tree / part).exists():
            raise BundleError(f"--source {name} has no {part}: it is no source of SWE-agent")


def check_archive(path: Path, roots: tuple[str, ...] | None = ROOTS) -> None:
    """Refuses an archive that could write elsewhere than below `roots` (None: below the folder that it is unpacked in).

    Raises:
        BundleError: names the member.
    """
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if name.is_absolute() or ".." in name.parts:
                    raise BundleError(f"{path.name}: member {member.name!r} leads outside")
                if roots is not None and not any(name.is_relative_to(root) for root in roots):
                    raise BundleError(f"{path.name}: member {member.name!r} lies outside {', '.join(roots)}")
                if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
                    raise BundleError(f"{path.name}: member {member.name!r} is a device or pipe")
                if member.issym() or member.islnk():
                    start = name.parent if member.issym() else PurePosixPath()
                    end = PurePosixPath(os.path.normpath(start / member.linkname))
                    if end.is_absolute() or end.parts[:1] == ("..",) or _leaves(end, roots):
                        raise BundleError(f"{path.name}: link {member.name!r} leads outside, to {member.linkname!r}")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BundleError(f"{path} is no complete tar archive: {error}") from error


def _leaves(end: PurePosixPath, roots: tuple[str, ...] | None) -> bool:
    return roots is not None and not any(end.is_relative_to(root) for root in roots)


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def tree_digest(folder: Path) -> str:
    """SHA-256 over paths, contents and execute bits of a folder's files; folders like .git and __pycache__ do not count."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if {".git", "__pycache__"} & set(relative.parts) or not (path.is_symlink() or path.is_file()):
            continue
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        mode = b"l" if path.is_symlink() else b"x" if os.access(path, os.X_OK) and path.stat().st_mode & 0o100 else b"f"
        total.update(b"%s %s %s\n" % (mode, hashlib.sha256(content).hexdigest().encode(), str(relative).encode()))
    return total.hexdigest()


def _same(what: str, found: str, wanted: str | None) -> None:
    if wanted is None:
        raise BundleError(f"{what} is not pinned: give --sha256 {found} if that is what you want")
    if found != wanted:
        raise BundleError(f"{what} has SHA-256 {found}, pinned is {wanted}: get the pinned one, or pin this one")


def _install(tree: Path, site: Path, requirements: Path | None) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(site)]
    if requirements is not None:
        _run([*pip, "--require-hashes", "-r", str(requirements)])
        pip += ["--no-deps", "--no-build-isolation"]
    with tempfile.TemporaryDirectory() as scratch:  # a build may write into its source
        copy = Path(scratch) / "source"
        shutil.copytree(tree, copy, symlinks=True)
        _run([*pip, str(copy)])


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member if "__pycache__" not in member.name else None


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, env={**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BundleError(f"{command[0]} failed: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise BundleError(f"{' '.join(command[:4])} failed: {said[-1] if said else done.returncode}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rock.harbor.swe_bundle", description=__doc__)
    parser.add_argument("--source", required=True, help="git URL, tarball or folder of SWE-agent")
    parser.add_argument("--commit", help="full commit of a git source")
    parser.add_argument("--sha256", help="of the tarball, or of the folder's content")
    parser.add_argument("--requirements", type=Path, help="locked packages with hashes")
    parser.add_argument(
        "--packages", type=Path, help="folder in which the source and its packages are installed already"
    )
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    try:
        made = build_bundle(
            options.source, options.output, options.commit, options.sha256, options.requirements, options.packages
        )
    except (BundleError, OSError) as error:
        print(f"swe_bundle: {error}", file=sys.stderr)
        return 2
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
