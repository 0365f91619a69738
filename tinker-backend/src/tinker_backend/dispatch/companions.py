"""Which runs tend to share a pass, so that the first of them can wait a moment for the others."""

from __future__ import annotations

import time
from collections.abc import Iterable

_SHARE = 0.1
"""Part of the last pass's time that a wait may take."""
_LONGEST = 0.05
_MOST_SKIPPED = 64


class Companions:
    """The runs of recent passes.

    Clients that train several runs side by side send the next requests of all of them within a few milliseconds, but the
    first to arrive would start a pass of its own and keep the others waiting for a whole one. A wait in vain makes the
    next ones rarer, so runs that take turns lose nothing.
    """

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._seconds = 0.0
        self._skip = self._penalty = 0

    def passed(self, runs: Iterable[str], seconds: float) -> None:
        """A pass over these runs took so long."""
        now = time.monotonic()
        self._seconds = seconds
        self._seen.update(dict.fromkeys(runs, now))
        horizon = now - 1.0 - 4 * seconds
        self._seen = {run: at for run, at in self._seen.items() if at >= horizon}

    def missing(self, present: Iterable[str]) -> bool:
        """Whether a run of the recent passes is not among these."""
        return bool(self._seen.keys() - set(present))

    def patience(self, present: Iterable[str]) -> float:
        """Seconds that a pass over these runs should wait for the missing ones; 0 when waiting was in vain lately."""
        if not self.missing(present):
            return 0.0
        if self._skip > 0:
            self._skip -= 1
            return 0.0
        return min(_LONGEST, _SHARE * self._seconds)

    def waited(self, joined: bool) -> None:
        """How a wait ended."""
        self._penalty = 0 if joined else min(_MOST_SKIPPED, max(1, 2 * self._penalty))
        self._skip = self._penalty
