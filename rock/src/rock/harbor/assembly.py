"""Layers of steps that only place files: put together right in the store, without a sandbox."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rock.harbor.dockerfile import CopyStep, FolderStep, Step, copy_sources
from rock.harbor.tarballs import extract_below
from rock.runtime.local import LocalRoot
from rock.runtime.local.root import layer_digest

# Below these the base has links, copy-on-write trees or files of its own, so only a sandbox knows where a path leads.
_OF_THE_SYSTEM = frozenset(
    [
        "bin",
        "boot",
        "dev",
        "etc",
        "home",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "media",
        "mnt",
        "proc",
        "root",
        "run",
        "sbin",
        "sys",
        "tmp",
        "usr",
        "var",
    ]
)


def can_assemble(segment: Sequence[Step], layers: Sequence[str]) -> bool:
    """Whether every step only places files, at places that are plain folders (or nothing) in all layers below."""
    for step in segment:
        if isinstance(step, CopyStep):
            path, plain = step.target, not step.owner
        elif isinstance(step, FolderStep):
            path, plain = step.path, True
        else:
            return False
        parts = Path(path).parts[1:]
        if not plain or not parts or parts[0] in _OF_THE_SYSTEM or ".." in parts:
            return False
        for depth in range(1, len(parts) + 1):
            inside = "/".join(parts[:depth])
            if any(_is_not_folder(f"{layer}/{inside}") for layer in layers):
                return False
    return True


def assemble(segment: Sequence[Step], folder: Path, root: LocalRoot, layers: Sequence[str]) -> str:
    """Makes the layer of such steps in the store and returns its folder.

    Args:
        folder: the build folder that COPY reads from.
        layers: folders of the layers below.
    """
    store = root.folder / "layers"
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=store))
    try:
        draft.chmod(0o755)
        for step in segment:
            if isinstance(step, FolderStep):
                _make_folder(draft, step.path)
            elif isinstance(step, CopyStep):
                _place(step, folder, draft, layers)
        layer = store / layer_digest(draft)
        if not layer.is_dir():
            draft.rename(layer)
        return str(layer)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _place(step: CopyStep, folder: Path, draft: Path, layers: Sequence[str]) -> None:
    sources = copy_sources(step, folder)
    relative = step.target.strip("/")
    there = (draft / relative).is_dir() or any(os.path.isdir(f"{layer}/{relative}") for layer in layers)
    into_folder = step.target.endswith("/") or len(sources) > 1 or there
    for source in sources:
        if source.is_dir():
            target = _make_folder(draft, relative)
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
            target.chmod(0o755)
        elif step.unpack and tarfile.is_tarfile(source):
            target = _make_folder(draft, relative)
            with tarfile.open(source) as archive:
                extract_below(archive, target)
        else:
            target = draft / relative / source.name if into_folder else draft / relative
            _make_folder(draft, str(target.parent.relative_to(draft)))
            shutil.copy2(source, target)
        if step.mode is not None:
            for path in (target, *target.rglob("*")):
                path.chmod(step.mode)


def _make_folder(draft: Path, path: str) -> Path:
    current = draft
    for part in Path(path.lstrip("/")).parts:
        current = current / part
        if not current.is_dir():
            current.mkdir()
            current.chmod(0o755)
    return current


def _is_not_folder(path: str) -> bool:
    return os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path))
