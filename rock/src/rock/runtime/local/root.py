"""LocalRoot: the folder that holds running sandboxes, cached base layers and image layers of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rock.runtime.local import hostbase
from rock.runtime.local.cgroups import sweep as sweep_cgroups
from rock.runtime.local.identity import initial_user_namespace
from rock.runtime.local.keeper import remove_run, remove_tree
from rock.runtime.local.spec import Bind, SandboxSpec
from rock.runtime.local.stage import mount_points

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}")
_STALE_DRAFT_SECONDS = 600.0
_SHADE_DEPTH, _SHADE_FOLDERS = 4, 6000


class LocalRoot:
    """State of the local runtime. Several processes may share one folder.

    ```
    run/<sandbox id>/   lock (held by the keeper), disk/ (what the sandbox writes), skeleton/, stage/ (mount point)
    base/               cached layers of the host base
    layers/<digest>/    image layers, content-addressed, never changed
    ```

    Args:
        folder: must lie on a file system that can be an overlay's upper folder (ext4, xfs, btrfs, tmpfs; not overlay).
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        for name in ("", "run", "base", "layers"):
            path = self.folder / name
            path.mkdir(parents=True, exist_ok=True)
            # Files inside belong to root of the sandbox, set-user-id ones too: nobody else may come near.
            path.chmod(0o700)

    def run_folder(self, sandbox_id: str) -> Path:
        return self.folder / "run" / sandbox_id

    def prepare(self, spec: SandboxSpec) -> dict[str, Any]:
        """Makes the run folder of a sandbox. Returns the keeper's request.

        Raises:
            OSError: the id is taken or a declared folder is missing.
            ValueError: the id or a path is not acceptable.
        """
        if not _ID.fullmatch(spec.sandbox_id):
            raise ValueError(f"sandbox_id {spec.sandbox_id!r}: use letters, digits, '_', '.', '-' (at most 120)")
        for path in (*spec.layers, *spec.trees, *(bind.source for bind in spec.binds)):
            if not os.path.isabs(path) or not os.path.exists(path):
                raise FileNotFoundError(f"{path} is declared for the sandbox but is not an existing absolute path")
        self._sweep_one(spec.sandbox_id)
        run = self.run_folder(spec.sandbox_id)
        run.mkdir(mode=0o700)
        try:
            return self._fill(run, spec)
        except BaseException:
            remove_run(run)
            raise

    def _fill(self, run: Path, spec: SandboxSpec) -> dict[str, Any]:
        if spec.scratch:
            hostbase.make_folder(run, "scratch", 0o700)
            spec = replace(spec, binds=(Bind(str(run / "scratch"), spec.scratch, writable=True), *spec.binds))
        hostname, network = spec.hostname or spec.sandbox_id[:63], spec.network == "host"
        mapped = os.geteuid() == 0 and initial_user_namespace()
        trees = [*(hostbase.system_trees() if spec.base == "host" else ()), *spec.trees]
        trees = [tree for tree in dict.fromkeys(trees) if not any(_below(tree, other) for other in trees)]
        (run / "layers").write_text("\n".join(Path(layer).name for layer in spec.layers))
        disk, skeleton = run / "disk", run / "skeleton"
        for name in ("fs", "work", *(f"{kind}/{n}" for kind in ("trees", "tree-work") for n in range(len(trees)))):
            hostbase.make_folder(run, f"disk/{name}")
        skeleton.mkdir()
        skeleton.chmod(0o755)
        lowers = list(spec.layers)
        if spec.base == "host":
            hostbase.write_skeleton(skeleton, hostname, network)
            lowers += [str(skeleton), str(hostbase.etc_layer(self.folder / "base", spec.etc, network))]
        else:
            hostbase.make_folder(skeleton, "etc")
            hostbase.write_name_files(skeleton / "etc", hostname, network)
            lowers.append(str(skeleton))
        for path, is_folder in mount_points(spec, trees):
            self._mount_point(path, is_folder, skeleton, disk, trees)
        full_range = mapped or not initial_user_namespace()
        shades = {} if full_range else {tree: str(self._shade(tree)) for tree in trees if tree != "/var/lib/dpkg"}
        return {
            "run": str(run),
            "spec": spec.to_json(),
            "trees": trees,
            "lowers": lowers,
            "shades": shades,
            "mapped": os.geteuid() == 0,
        }

    def _mount_point(self, path: str, is_folder: bool, skeleton: Path, disk: Path, trees: list[str]) -> None:
        if not os.path.isabs(path) or ".." in Path(path).parts:
            raise ValueError(f"target {path!r}: give an absolute path without '..'")
        if Path(path).parts[1:2] and Path(path).parts[1] in hostbase.MOUNT_POINTS and path.strip("/").count("/"):
            raise ValueError(f"target {path!r}: /proc, /dev and /sys are the sandbox's own")
        tree = next((index for index, tree in enumerate(trees) if _below(path, tree)), None)
        if tree is not None:
            inside = os.path.relpath(path, trees[tree])
            if os.path.lexists(path):
                return
            base = disk / "trees" / str(tree)
        else:
            base, inside = skeleton, path
        if is_folder:
            if not (base / inside.lstrip("/")).is_dir():
                hostbase.make_folder(base, inside)
            return
        parent = hostbase.make_folder(base, os.path.dirname(inside) or ".")
        (parent / os.path.basename(inside)).touch()

    def _shade(self, tree: str) -> Path:
        """Folders like those of `tree`, but ours: without mapped ids nobody inside could write into the originals."""
        shade = self.folder / "base" / f"shade-{hashlib.sha256(tree.encode()).hexdigest()[:20]}"
        if shade.is_dir():
            return shade
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=self.folder / "base"))
        for count, (folder, names, _) in enumerate(os.walk(tree)):
            relative = os.path.relpath(folder, tree)
            depth = 0 if relative == "." else relative.count("/") + 1
            (draft / relative).mkdir(parents=True, exist_ok=True)
            (draft / relative).chmod(0o755)
            if depth >= _SHADE_DEPTH or count >= _SHADE_FOLDERS or relative.startswith("share/"):
                names.clear()
        with contextlib.suppress(OSError):
            draft.rename(shade)
        shutil.rmtree(draft, ignore_errors=True)
        return shade

    # -- ends -----------------------------------------------------------------------------------------------------

    def discard(self, spec: SandboxSpec) -> None:
        """Removes the files of a sandbox that has ended."""
        self._sweep_one(spec.sandbox_id)

    def _sweep_one(self, sandbox_id: str) -> bool:
        run = self.run_folder(sandbox_id)
        if not run.is_dir() or not _unlocked(run / "lock"):
            return False
        remove_run(run)
        return True

    def sweep(self, only: set[str] | None = None) -> list[str]:
        """Removes what sandboxes (`only` these) left whose keeper was killed. Returns their ids."""
        names = {entry.name for entry in (self.folder / "run").iterdir()}
        removed = [name for name in sorted(names if only is None else names & only) if self._sweep_one(name)]
        for draft in (*(self.folder / "base").glob(".draft-*"), *(self.folder / "layers").glob(".draft-*")):
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > _STALE_DRAFT_SECONDS:
                    remove_tree(draft)
        alive = {f"rock-{entry.name}" for entry in (self.folder / "run").iterdir()}
        if removed:
            sweep_cgroups(alive)
        return removed

    # -- layers ---------------------------------------------------------------------------------------------------

    def take_layer(self, spec: SandboxSpec, trees: list[str]) -> Path:
        """Copies what a sandbox has written into the store. Returns the layer's folder `layers/<digest>`."""
        disk = self.run_folder(spec.sandbox_id) / "disk"
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=self.folder / "layers"))
        copy_layer(disk / "fs", draft)
        for index, tree in enumerate(trees):
            written = disk / "trees" / str(index)
            if any(written.iterdir()):
                hostbase.make_folder(draft, os.path.dirname(tree) or ".")
                copy_layer(written, draft / tree.lstrip("/"))
        digest = layer_digest(draft)
        layer = self.folder / "layers" / digest
        try:
            draft.rename(layer)
        except OSError:  # the same content is there already
            remove_tree(draft)
        return layer

    def layer(self, digest: str) -> Path:
        """Folder of a stored layer.

        Raises:
            FileNotFoundError: the store has none of that digest.
        """
        path = self.folder / "layers" / digest
        if not re.fullmatch(r"[0-9a-f]{64}", digest) or not path.is_dir():
            raise FileNotFoundError(f"layer {digest!r} is not in {self.folder / 'layers'}")
        return path

    def layer_in_use(self, digest: str) -> bool:
        """True while a running sandbox of this root was started from the layer."""
        for run in (self.folder / "run").iterdir():
            with contextlib.suppress(OSError):
                if digest in (run / "layers").read_text().split():
                    return True
        return False

    def remove_layer(self, digest: str) -> None:
        """Removes a layer from the store."""
        remove_tree(self.layer(digest))


def copy_layer(source: Path, target: Path) -> None:
    """Copies an overlay's upper folder with owners, modes, times, links, whiteouts and overlay marks."""
    if not target.is_dir():
        target.mkdir()
    _copy_attributes(source, target)
    hard_links: dict[tuple[int, int], Path] = {}
    with os.scandir(source) as entries:
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            goal = target / entry.name
            if entry.is_dir(follow_symlinks=False):
                copy_layer(Path(entry.path), goal)
                continue
            if info.st_nlink > 1 and (info.st_dev, info.st_ino) in hard_links:
                os.link(hard_links[info.st_dev, info.st_ino], goal)
                continue
            hard_links[info.st_dev, info.st_ino] = goal
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), goal)
            elif stat.S_ISREG(info.st_mode):
                shutil.copyfile(entry.path, goal)
            elif stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
                os.mknod(goal, stat.S_IFCHR | 0o600, 0)  # whiteout: the file below is gone
            else:
                continue  # sockets and pipes mean nothing without their process
            _copy_attributes(Path(entry.path), goal)
    info = source.lstat()
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


def _copy_attributes(source: Path, target: Path) -> None:
    info = source.lstat()
    with contextlib.suppress(PermissionError):
        os.lchown(target, info.st_uid, info.st_gid)
    if not stat.S_ISLNK(info.st_mode):
        os.chmod(target, stat.S_IMODE(info.st_mode))
        for name in os.listxattr(source, follow_symlinks=False):
            if name.startswith("user."):
                os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)


def layer_digest(folder: Path) -> str:
    """SHA-256 over names, kinds, modes, owners and contents of a layer (not over times)."""
    digest = hashlib.sha256()
    for current, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *names]):
            path = Path(current, name)
            info = path.lstat()
            digest.update(f"{path.relative_to(folder)}\0{info.st_mode}\0{info.st_uid}\0{info.st_gid}\0".encode())
            if stat.S_ISLNK(info.st_mode):
                digest.update(os.readlink(path).encode())
            elif stat.S_ISREG(info.st_mode):
                with path.open("rb") as content:
                    digest.update(hashlib.file_digest(content, "sha256").digest())
            elif stat.S_ISDIR(info.st_mode):
                digest.update(b"opaque" if "user.overlay.opaque" in os.listxattr(path) else b"")
    return digest.hexdigest()


def _unlocked(lock: Path) -> bool:
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        # between prepare and the keeper's lock; a folder that stays like that for a minute is a leftover
        with contextlib.suppress(OSError):
            return time.time() - lock.parent.stat().st_mtime > 60
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _below(path: str, folder: str) -> bool:
    """True if `path` lies strictly below `folder`."""
    return path != folder and path.startswith(folder.rstrip("/") + "/")
