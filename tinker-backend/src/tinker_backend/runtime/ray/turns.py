"""Turns of a trainer and a sampler that share GPUs: while one computes, the other has given its memory back."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tinker_backend.runtime.roles import RuntimeFault


class Turns:
    """Training excludes sampling and the other way round; requests that waited through a training turn go before the next.

    Where nothing is shared, every turn is free at once. ``sleep`` and ``wake`` are those of the sampler.
    """

    def __init__(self, shared: bool, sleep: Callable[[], None], wake: Callable[[], None], seconds: float) -> None:
        self.shared = shared
        self._sleep, self._wake, self._seconds = sleep, wake, seconds
        self._changed = threading.Condition()
        self._awake = True
        self._busy = False
        self._inside = 0
        self._training_waits = 0
        self._sampling_waits = 0
        self._owed = 0
        self._queue: deque[SamplingTurn] = deque()
        self._dispatcher: threading.Thread | None = None

    @contextmanager
    def training(self) -> Iterator[None]:
        """The time of one training call. Raises RuntimeFault (server) when sampling does not end in time."""
        if not self.shared:
            yield
            return
        with self._changed:
            self._training_waits += 1
            try:
                self._wait(lambda: self._inside == 0 and not self._busy and self._owed == 0)
            finally:
                self._training_waits -= 1
            self._busy = True
        try:
            if self._awake:
                self._sleep()
                self._awake = False
            yield
        finally:
            with self._changed:
                self._busy = False
                self._owed = self._sampling_waits
                self._changed.notify_all()

    def sampling(self) -> SamplingTurn:
        """A turn that is entered with ``with``, or with ``when_ready`` and ``leave``."""
        return SamplingTurn(self)

    def _wait(self, ready: Callable[[], bool]) -> None:
        if not self._changed.wait_for(ready, self._seconds):
            raise RuntimeFault(f"trainer and sampler share GPUs, and no turn came within {self._seconds:.0f} s")

    def enter_sampling(self) -> None:
        """Waits for the turn and wakes the sampler where it sleeps."""
        with self._changed:
            self._sampling_waits += 1
            try:
                self._wait(lambda: not self._busy and (self._training_waits == 0 or self._owed > 0))
            finally:
                self._sampling_waits -= 1
                self._owed = max(0, self._owed - 1)
                self._changed.notify_all()
            if self._awake:
                self._inside += 1
                return
            self._busy = True
        try:
            self._wake()
            self._awake = True
        finally:
            with self._changed:
                self._busy = False
                self._inside += int(self._awake)
                self._changed.notify_all()

    def leave_sampling(self) -> None:
        """Ends a turn."""
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def dispatch(self, turn: SamplingTurn) -> None:
        """Lets a thread of its own wait for the turn."""
        with self._changed:
            self._queue.append(turn)
            self._changed.notify_all()
            if self._dispatcher is None:
                self._dispatcher = threading.Thread(target=self._dispatch, name="turns", daemon=True)
                self._dispatcher.start()

    def _dispatch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue))
                turn = self._queue.popleft()
            turn.begin()


class SamplingTurn:
    """The time of one sample, or of a change to the sampler."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._entered = False
        self._ready: Callable[[RuntimeFault | None], None] = lambda fault: None

    def __enter__(self) -> SamplingTurn:
        if self._turns.shared:
            self._turns.enter_sampling()
            self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def when_ready(self, ready: Callable[[RuntimeFault | None], None]) -> None:
        """Calls ``ready`` once the turn has come, or with the fault that kept it away."""
        self._ready = ready
        if self._turns.shared:
            self._turns.dispatch(self)
        else:
            ready(None)

    def begin(self) -> None:
        """Waits for the turn and calls what was given to ``when_ready``."""
        try:
            self.__enter__()
        except Exception as error:
            self._ready(error if isinstance(error, RuntimeFault) else RuntimeFault(f"the sampler cannot wake: {error}"))
            return
        self._ready(None)

    def leave(self) -> None:
        """Ends the turn, if it has begun."""
        if self._entered:
            self._entered = False
            self._turns.leave_sampling()
