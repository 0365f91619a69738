"""How asyncio learns of the end of child processes."""

from __future__ import annotations

import asyncio
import sys


def watch_children_by_descriptor() -> None:
    """Uses process descriptors. Before Python 3.12 asyncio would start a thread for every child process. Call it inside the
    running loop."""
    if sys.version_info < (3, 12):
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.get_event_loop_policy().set_child_watcher(watcher)
