"""Tar archives that somebody else made, unpacked on this machine."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path


def extract_below(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpacks all members below `folder`, owned by this user, without set-user-id and the like.

    The data filter of :mod:`tarfile` does that; Python 3.11 has it since 3.11.4, and Debian 12 ships 3.11.2, where the same is
    checked here.

    Raises:
        tarfile.TarError: a member or a link leads outside, or a member is a device or a pipe.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    extract_checked(archive, folder)


def extract_checked(archive: tarfile.TarFile, folder: Path) -> None:
    """What :func:`extract_below` does where the library has no filter."""
    root = os.path.realpath(folder)
    for member in archive:
        place = _inside(root, os.path.join(root, member.name.lstrip("/")), member)
        if member.issym() or member.islnk():
            start = os.path.dirname(place) if member.issym() else root
            if os.path.isabs(member.linkname):
                raise tarfile.ExtractError(f"{member.name!r} is a link to the absolute path {member.linkname!r}")
            _inside(root, os.path.join(start, member.linkname), member)
        elif not (member.isreg() or member.isdir()):
            raise tarfile.ExtractError(f"{member.name!r} is a device or a pipe")
        member.name = os.path.relpath(place, root)
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        archive.extract(member, root)


def _inside(root: str, path: str, member: tarfile.TarInfo) -> str:
    """The path without links; what it leads through has been unpacked already."""
    real = os.path.realpath(path)
    if os.path.commonpath([real, root]) != root:
        raise tarfile.ExtractError(f"{member.name!r} leads to {real!r}, outside {root!r}")
    return real
