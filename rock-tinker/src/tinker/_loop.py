"""The event loop of the SDK: one daemon thread a process, shared by all clients."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future as ConcurrentFuture
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Starts its thread when first used, so that importing costs nothing and a forked child gets its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(loop,), name="tinker-loop", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()

    def is_current_thread(self) -> bool:
        return self._thread is threading.current_thread()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> ConcurrentFuture[T]:
        """Start work now; the context variables of the caller go along."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop())


LOOP = LoopThread()


def _after_fork_in_child() -> None:
    LOOP.__init__()  # type: ignore[misc]  # the thread did not survive the fork; modules hold this object


os.register_at_fork(after_in_child=_after_fork_in_child)
