"""Folders and files over tar streams, with care on both ends: neither side trusts what the other sends.

Only regular files, folders and symbolic links travel; device nodes, sockets and pipes are left out. Unpacking never
walks through a symbolic link and writes nothing outside its folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import IO


def pack(path: str, stream: IO[bytes], name: str | None = None) -> None:
    """Writes `path` to `stream`: a folder's content under ".", a file under `name` (default: its own name).

    Raises:
        FileNotFoundError: nothing is there.
    """
    source = Path(path)
    info = source.stat()
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        if not stat.S_ISDIR(info.st_mode):
            _add(archive, source, name or source.name, follow=True)
            return
        pending = [(source, ".")]
        while pending:
            folder, path_in_archive = pending.pop()
            _add(archive, folder, path_in_archive, follow=path_in_archive == ".")
            with contextlib.suppress(PermissionError), os.scandir(folder) as entries:
                for entry in sorted(entries, key=lambda one: one.name, reverse=True):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((Path(entry.path), f"{path_in_archive}/{entry.name}"))
                    else:
                        _add(archive, Path(entry.path), f"{path_in_archive}/{entry.name}")
    stream.flush()


def _add(archive: tarfile.TarFile, path: Path, name: str, follow: bool = False) -> None:
    try:
        info = path.stat() if follow else path.lstat()
        member = tarfile.TarInfo(name)
        member.mode, member.mtime, member.uid, member.gid = stat.S_IMODE(info.st_mode), info.st_mtime, 0, 0
        if stat.S_ISDIR(info.st_mode):
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
        elif stat.S_ISLNK(info.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
            archive.addfile(member)
        elif stat.S_ISREG(info.st_mode):
            with path.open("rb") as content:
                member.size = os.fstat(content.fileno()).st_size
                archive.addfile(member, _Exactly(content, member.size))
    except (FileNotFoundError, PermissionError):
        return  # vanished or unreadable meanwhile


class _Exactly:
    """A reader of exactly `size` bytes: a file that shrinks is padded with zeros, one that grows is cut."""

    def __init__(self, content: IO[bytes], size: int) -> None:
        self.content, self.left = content, size

    def read(self, count: int = -1) -> bytes:
        count = self.left if count < 0 else min(count, self.left)
        data = self.content.read(count)
        data += bytes(count - len(data))
        self.left -= count
        return data


def unpack(path: str, stream: IO[bytes], links_may_leave: bool = True) -> list[str]:
    """Unpacks a tar stream into the folder `path`, which is created if it is missing.

    Args:
        links_may_leave: keep symbolic links that point outside the folder (right inside a sandbox; wrong on the
            machine, where a later reader would follow a link that the sandbox chose).

    Returns:
        Names that were refused (outside the folder, or through a symbolic link).
    """
    Path(path).mkdir(parents=True, exist_ok=True)
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    refused: list[str] = []
    links: list[tarfile.TarInfo] = []
    modes: list[tuple[tuple[str, ...], int]] = []
    try:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                parts = tuple(part for part in PurePosixPath(member.name).parts if part not in ("/", "."))
                if ".." in parts:
                    refused.append(member.name)
                elif member.issym():
                    links.append(member)
                elif member.isdir():
                    if not _folder(root, parts, refused, member.name):
                        continue
                    modes.append((parts, member.mode & 0o1777))
                elif member.isreg():
                    _file(root, parts, archive, member, refused)
        for member in links:
            parts = tuple(part for part in PurePosixPath(member.name).parts if part not in ("/", "."))
            if not links_may_leave and _leaves(parts, member.linkname):
                refused.append(member.name)
                continue
            _link(root, parts, member, refused)
        for parts, mode in reversed(modes):
            _chmod(root, parts, mode)
    finally:
        os.close(root)
    while stream.read(1 << 16):  # padding after the end mark: the sender must not see a broken pipe
        pass
    return refused


def unpack_host(stream: IO[bytes], target: Path) -> list[str]:
    """Unpacks what `pack` wrote inside a sandbox: a folder into `target`, a single file as `target`."""
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        first = archive.next()
    stream.seek(0)
    if first is None or not first.isreg() or first.name.startswith("./"):
        return unpack(str(target), stream, links_may_leave=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".rock-") as draft:
        refused = unpack(draft, stream, links_may_leave=False)
        os.replace(Path(draft, Path(first.name).name), target / Path(first.name).name if target.is_dir() else target)
    return refused


def _leaves(parts: tuple[str, ...], target: str) -> bool:
    """True if a link at `parts` to `target` points outside the folder, or goes up after it went down (the folder it
    passes could be a link itself)."""
    depth = len(parts) - 1
    descended = False
    for part in PurePosixPath(target).parts:
        if part == "/":
            return True
        if part == "..":
            depth -= 1
            if depth < 0 or descended:
                return True
        else:
            descended = True
    return False


def _walk(root: int, parts: tuple[str, ...]) -> int:
    """Descriptor of the folder `parts` below `root`; missing folders are made, links are not followed."""
    current = os.dup(root)
    for part in parts:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=current)
            following = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
        except OSError:
            os.close(current)
            raise
        os.close(current)
        current = following
    return current


def _folder(root: int, parts: tuple[str, ...], refused: list[str], name: str) -> bool:
    try:
        os.close(_walk(root, parts))
    except OSError:
        refused.append(name)
        return False
    return True


def _file(
    root: int, parts: tuple[str, ...], archive: tarfile.TarFile, member: tarfile.TarInfo, refused: list[str]
) -> None:
    content = archive.extractfile(member)
    if content is None or not parts:
        return
    try:
        folder = _walk(root, parts[:-1])
    except OSError:
        refused.append(member.name)
        return
    try:
        _unlink(parts[-1], folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(parts[-1], flags, 0o600, dir_fd=folder), "wb") as target:
            shutil.copyfileobj(content, target, 1 << 20)
            os.fchmod(target.fileno(), member.mode & 0o777)
            os.utime(target.fileno(), (member.mtime, member.mtime))
    except IsADirectoryError:
        refused.append(member.name)
    finally:
        os.close(folder)


def _link(root: int, parts: tuple[str, ...], member: tarfile.TarInfo, refused: list[str]) -> None:
    try:
        folder = _walk(root, parts[:-1])
    except OSError:
        refused.append(member.name)
        return
    try:
        _unlink(parts[-1], folder)
        os.symlink(member.linkname, parts[-1], dir_fd=folder)
    except OSError:
        refused.append(member.name)
    finally:
        os.close(folder)


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _chmod(root: int, parts: tuple[str, ...], mode: int) -> None:
    with contextlib.suppress(OSError):
        folder = _walk(root, parts)
        os.fchmod(folder, mode)
        os.close(folder)
