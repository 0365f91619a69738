"""Watches the agent's process from the outside and learns how it ended."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

POLL_SECONDS = 0.2
STATUS_FILE_GRACE_SECONDS = 2.0
"""How long the wrapper of the agent may take to write the exit status after the process is gone."""


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


async def wait_process(pid: int) -> None:
    """Returns when the process is over.

    Uses a pidfd, which fires at once and is immune to the reuse of the number; where the kernel has none, a poll does.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):
        while is_running(pid):
            await asyncio.sleep(POLL_SECONDS)
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(descriptor, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def read_status(path: Path | None) -> int | None:
    """The exit status that the wrapper of the process left in ``path``; None when there is none.

    A watcher that is not the parent cannot ask the kernel, hence the file.
    """
    if path is None:
        return None
    deadline = time.monotonic() + STATUS_FILE_GRACE_SECONDS
    while True:
        try:
            return int(path.read_text().strip())
        except (OSError, ValueError):
            if time.monotonic() >= deadline:
                return None
            await asyncio.sleep(0.05)
