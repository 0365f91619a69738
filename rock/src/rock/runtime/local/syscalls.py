"""The few Linux system calls that Python's os module lacks, over ctypes. Standard library only."""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
PR_SET_NAME = 15

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_IDMAP = 0x00100000
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10

_NR_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_NR_OPEN_TREE, _NR_MOVE_MOUNT, _NR_OPENAT2, _NR_MOUNT_SETATTR = 428, 429, 437, 442

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, flags: int) -> None:
    _check(_libc.setns(fd, flags), f"setns({flags:#x})")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    _check(
        _libc.mount(
            source.encode(),
            target.encode(),
            kind.encode() if kind else None,
            ctypes.c_ulong(flags),
            options.encode() if options else None,
        ),
        f"mount {kind or 'bind'} {source} on {target}",
    )


def umount(target: str, flags: int = MNT_DETACH) -> None:
    _check(_libc.umount2(target.encode(), flags), f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    number = _NR_PIVOT_ROOT[platform.machine()]
    _check(_libc.syscall(number, new_root.encode(), put_old.encode()), f"pivot_root {new_root}")


def prctl(option: int, value: int = 0, pointer: object = None) -> None:
    third = pointer if pointer is not None else ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), third, ctypes.c_ulong(0), ctypes.c_ulong(0)), f"prctl({option})")


def open_tree(path: str, recursive: bool = False) -> int:
    """A detached clone of the mount at `path`, as a descriptor."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return _check(_libc.syscall(_NR_OPEN_TREE, AT_FDCWD, path.encode(), flags), f"open_tree {path}")


class _MountAttr(ctypes.Structure):
    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def mount_setattr(fd: int, attributes: int, userns_fd: int = 0, recursive: bool = False) -> None:
    attr = _MountAttr(attributes, 0, 0, userns_fd)
    flags = AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)
    result = _libc.syscall(_NR_MOUNT_SETATTR, fd, b"", flags, ctypes.byref(attr), ctypes.sizeof(attr))
    _check(result, f"mount_setattr({attributes:#x})")


def move_mount(fd: int, target_fd: int) -> None:
    """Attaches the detached mount `fd` at the folder or file that `target_fd` (O_PATH) stands for."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _check(_libc.syscall(_NR_MOVE_MOUNT, fd, b"", target_fd, b"", flags), "move_mount")


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_in_root(root_fd: int, path: str, flags: int = os.O_PATH, mode: int = 0) -> int:
    """Opens `path` with every symbolic link and every `..` resolved inside `root_fd`."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    result = _libc.syscall(_NR_OPENAT2, root_fd, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
    return _check(result, f"open {path}")


class _Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(_Filter))]


def install_seccomp(instructions: list[tuple[int, int, int, int]]) -> None:
    """Installs a BPF filter for this process and its children. Needs CAP_SYS_ADMIN in the user namespace."""
    filters = (_Filter * len(instructions))(*[_Filter(*one) for one in instructions])
    program = _Program(len(instructions), filters)
    prctl(PR_SET_SECCOMP, 2, ctypes.byref(program))
