"""What killed processes leave on a machine beside files: shared memory under random names, and children that live on.

Shared memory is told by its inode, which the engine's processes have mapped; children of Ray by the logs in the runtime's
private folder that they write. Nothing is ever taken for ours by its name.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

_MEMORY = Path("/dev/shm")
_NOTE = "shared-memory"
_WRITABLE = os.O_WRONLY | os.O_RDWR


def start_of(pid: int) -> str | None:
    """When a process started, which tells it from a later one with its number; None: it is gone, or a zombie."""
    cells = _stat(pid)
    return None if cells is None or cells[0] in "ZX" else cells[19]


def parent_of(pid: int) -> int | None:
    """The process that started it, or that has taken it over; None: it is gone."""
    cells = _stat(pid)
    return None if cells is None else int(cells[1])


def _stat(pid: int) -> list[str] | None:
    """What the kernel says of a process, from its state on; None: there is none."""
    try:
        # The name stands in brackets and may hold spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def processes_under(root: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        if (parent := parent_of(pid)) is not None:
            children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def note_memory(folder: Path, root: int) -> None:
    """Writes down the shared memory that a process and its descendants have mapped (``remove_noted_memory``)."""
    mapped: set[tuple[int, int]] = set()
    for pid in processes_under(root):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
                cells = line.split(maxsplit=5)
                if len(cells) == 6 and cells[5].startswith(f"{_MEMORY}/"):
                    major, minor = (int(part, 16) for part in cells[3].split(":"))
                    mapped.add((os.makedev(major, minor), int(cells[4])))
    # A mapping shows the name at its birth; glibc gives a semaphore another one afterwards.
    names = {name: found for name, found in _memory_files() if found in mapped}
    staged = folder / f"{_NOTE}.new"
    staged.write_text("".join(f"{device} {inode} {name}\n" for name, (device, inode) in sorted(names.items())))
    staged.replace(folder / _NOTE)


def remove_noted_memory(folder: Path) -> None:
    """Removes the shared memory that ``note_memory`` wrote down, where name and inode are still those of that time."""
    with contextlib.suppress(OSError):
        noted = set((folder / _NOTE).read_text().splitlines())
        for name, (device, inode) in _memory_files():
            if f"{device} {inode} {name}" in noted:
                with contextlib.suppress(OSError):
                    (_MEMORY / name).unlink()


def end_writers(folder: Path) -> None:
    """Kills this user's processes that write a file in ``folder``, which belongs to a dead runtime alone."""
    for pid in _pids():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and Path(f"/proc/{pid}").stat().st_uid == os.geteuid() and _writes(pid, folder):
                os.kill(pid, signal.SIGKILL)


def _writes(pid: int, folder: Path) -> bool:
    for handle in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError, ValueError):
            if os.readlink(f"/proc/{pid}/fd/{handle}").startswith(f"{folder}/"):
                facts = dict(
                    line.split(":", 1) for line in Path(f"/proc/{pid}/fdinfo/{handle}").read_text().splitlines()
                )
                if int(facts["flags"], 8) & _WRITABLE:
                    return True
    return False


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _memory_files() -> Iterator[tuple[str, tuple[int, int]]]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(_MEMORY):
            with contextlib.suppress(OSError):
                facts = entry.stat(follow_symlinks=False)
                yield entry.name, (facts.st_dev, facts.st_ino)
