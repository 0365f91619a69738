"""Ends what a command started, including children that left its session."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "ROCK_EXEC_ID"  # environment variable by which a command's stray children are found


def family(root: int, mark: str = "", *, itself: bool = True) -> set[int]:
    """Pids (of this pid namespace) of `root`, its descendants, its session and all that carry `mark`."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    needle = f"{MARK}={mark}".encode() if mark else None
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in (1, os.getpid()):
            continue
        with contextlib.suppress(OSError, IndexError):
            fields = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()
            state, parent, session = fields[0], int(fields[1]), int(fields[3])
            if state in "ZX":
                continue
            parents[int(entry)] = parent
            if session == root or needle and needle in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                found.add(int(entry))
    for pid in parents:
        line, ancestor = [pid], parents[pid]
        while ancestor > 1 and ancestor not in line:
            if ancestor == root:
                found.add(pid)
            line.append(ancestor)
            ancestor = parents.get(ancestor, 0)
    if root in parents:
        found.add(root)
    return found if itself else found - {root}


def kill_family(root: int, mark: str = "", *, itself: bool = True) -> None:
    """SIGKILL for the whole family. A fork may slip between the look and the kill: looks until nobody is left."""
    for _ in range(20):
        victims = family(root, mark, itself=itself)
        if not victims:
            return
        for pid in victims:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
