"""Assembles the mount tree of one sandbox inside the keeper's private mount namespace."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rock.runtime.local import syscalls as sc
from rock.runtime.local.spec import SandboxSpec

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}  # fmt: skip
OPTIONAL_DEVICES = ("fuse",)


class Stage:
    """The folder `<run>/stage`, a tmpfs that only this mount namespace sees; the new root grows in `root`.

    Paths are short and relative to the stage, so that neither length nor odd characters of the run folder reach the
    overlay options.

    Args:
        run: run folder of the sandbox.
        userns_fd: user namespace for id-mapped mounts, or None (files then keep the owners that they have).
    """

    def __init__(self, run: Path, userns_fd: int | None) -> None:
        self.run = run
        self.userns_fd = userns_fd
        self.notes: list[str] = []
        self.disk = ""
        self.short: dict[str, str] = {}
        self.bound: list[str] = []
        self._number = 0
        (run / "stage").mkdir(exist_ok=True)
        sc.mount("tmpfs", str(run / "stage"), "tmpfs", sc.MS_NOSUID, "mode=755")
        os.chdir(run / "stage")
        os.mkdir("root", 0o755)
        os.mkdir("m", 0o755)

    def _attach(self, source: str, target_fd: int, read_only: bool) -> None:
        """Bind of `source` at `target_fd`, id-mapped where the file system and our rights allow it."""
        tree = sc.open_tree(source)
        try:
            if self.userns_fd is not None:
                try:
                    sc.mount_setattr(tree, sc.MOUNT_ATTR_IDMAP, self.userns_fd)
                except OSError as error:
                    self.notes.append(f"no id map on {source}: {error.strerror}")
            # nodev would cost nothing here: the user namespace cannot make device nodes, but images may hold some.
            attributes = sc.MOUNT_ATTR_NODEV | (sc.MOUNT_ATTR_RDONLY if read_only else 0)
            sc.mount_setattr(tree, attributes)
            sc.move_mount(tree, target_fd)
        finally:
            os.close(tree)

    def _private_copy(self, source: str, *, read_only: bool) -> str:
        """Mounts `source` at a short path below the stage and returns that path."""
        self._number += 1
        short = f"m/{self._number}"
        if os.path.isdir(source):
            os.mkdir(short, 0o755)
        else:
            os.close(os.open(short, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        target = os.open(short, os.O_PATH | os.O_CLOEXEC)
        try:
            self._attach(source, target, read_only)
        finally:
            os.close(target)
        return short

    def collect(self, spec: SandboxSpec, lowers: list[str], trees: list[str], shades: dict[str, str]) -> None:
        """Brings all that is needed from outside below the stage, owners mapped, read-only where it must stay so.

        When the next user namespace copies these mounts, the kernel locks their read-only flags: root inside cannot
        take them back.

        Args:
            lowers: all read-only folders of the root, topmost first.
            trees: folders of this machine shown copy on write at the same path.
            shades: per tree a folder of directories that we own, laid over it (where ids cannot be mapped).
        """
        self.disk = self._private_copy(str(self.run / "disk"), read_only=False)
        for path in [*lowers, *trees, *shades.values()]:
            self.short[path] = self._private_copy(path, read_only=True)
        for bind in spec.binds:
            self.bound.append(self._private_copy(bind.source, read_only=not bind.writable))

    def assemble(self, spec: SandboxSpec, lowers: list[str], trees: list[str], shades: dict[str, str]) -> None:
        """Builds the new root in `root`, as root of the sandbox's own namespaces."""
        short, disk = self.short, self.disk
        self._overlay("root", [short[path] for path in lowers], f"{disk}/fs", f"{disk}/work")
        for index, tree in enumerate(trees):
            relative = tree.lstrip("/")
            above = [short[layer] + "/" + relative for layer in spec.layers if _is_folder(short[layer], relative)]
            if tree in shades:
                above.append(short[shades[tree]])
            target = self._inside(tree)
            self._overlay(target, [*above, short[tree]], f"{disk}/trees/{index}", f"{disk}/tree-work/{index}")
        for bind, source in zip(spec.binds, self.bound, strict=True):
            sc.mount(source, self._inside(bind.target), None, sc.MS_BIND)

    @staticmethod
    def _overlay(target: str, lowers: list[str], upper: str, work: str) -> None:
        options = f"lowerdir={':'.join(lowers)},upperdir={upper},workdir={work},userxattr"
        try:
            sc.mount("rock", target, "overlay", sc.MS_NODEV, options + ",volatile")
        except OSError:  # older kernels do not know "volatile"
            sc.mount("rock", target, "overlay", sc.MS_NODEV, options)

    def _inside(self, path: str) -> str:
        """The mount point `path` of the new root, as a path through a descriptor; links resolve inside the root."""
        root = os.open("root", os.O_PATH | os.O_CLOEXEC)
        try:
            return f"/proc/self/fd/{sc.open_in_root(root, path)}"
        except OSError as error:
            raise OSError(error.errno, f"mount point {path} is missing in the image: {error.strerror}") from error
        finally:
            os.close(root)

    # -- the part that runs as root of the new namespaces ---------------------------------------------------------

    @staticmethod
    def enter_root(map_terminal_group: bool) -> None:
        """Makes ./root the root of this mount namespace, with /proc and /dev of the new pid namespace."""
        sc.mount("root", "root", None, sc.MS_BIND | sc.MS_REC)
        root = os.open("root", os.O_PATH | os.O_CLOEXEC)
        flags = sc.MS_NOSUID | sc.MS_NODEV | sc.MS_NOEXEC
        proc = sc.open_in_root(root, "/proc", os.O_PATH | os.O_DIRECTORY)
        sc.mount("proc", f"/proc/self/fd/{proc}", "proc", flags)
        dev = sc.open_in_root(root, "/dev", os.O_PATH | os.O_DIRECTORY)
        sc.mount("tmpfs", f"/proc/self/fd/{dev}", "tmpfs", sc.MS_NOSUID | sc.MS_NOEXEC, "mode=755,size=1m")
        os.close(dev)
        dev = sc.open_in_root(root, "/dev", os.O_PATH | os.O_DIRECTORY)
        base = f"/proc/self/fd/{dev}"
        for name in (*_DEVICES, *OPTIONAL_DEVICES):
            if os.path.exists(f"/dev/{name}"):
                os.close(os.open(f"{base}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
                try:
                    sc.mount(f"/dev/{name}", f"{base}/{name}", None, sc.MS_BIND)
                except OSError:
                    os.unlink(f"{base}/{name}")
        for name, link in _DEVICE_LINKS.items():
            os.symlink(link, f"{base}/{name}")
        os.mkdir(f"{base}/pts", 0o755)
        os.mkdir(f"{base}/shm", 0o755)
        group = ",gid=5" if map_terminal_group else ""
        sc.mount(
            "devpts", f"{base}/pts", "devpts", sc.MS_NOSUID | sc.MS_NOEXEC, f"newinstance,ptmxmode=666,mode=620{group}"
        )
        sc.mount("tmpfs", f"{base}/shm", "tmpfs", sc.MS_NOSUID | sc.MS_NODEV, "mode=1777")
        for fd in (proc, dev):
            os.close(fd)
        os.fchdir(root)
        os.close(root)
        sc.pivot_root(".", ".")
        sc.umount(".")
        os.chdir("/")


def _is_folder(layer: str, relative: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.isdir(os.path.join(layer, relative)) and not os.path.islink(os.path.join(layer, relative))
    return False


def mount_points(spec: SandboxSpec, trees: list[str]) -> list[tuple[str, bool]]:
    """(path, is a folder) of everything that gets mounted over the root."""
    points = [(f"/{name}", True) for name in ("proc", "dev", "sys")]
    points += [(tree, True) for tree in trees]
    points += [(bind.target, os.path.isdir(bind.source)) for bind in spec.binds]
    return points
