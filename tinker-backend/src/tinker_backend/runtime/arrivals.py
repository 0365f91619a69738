"""Requests that come one right after another belong together: it pays to wait a moment for the rest of them."""

from __future__ import annotations

_SHORTEST, _GAP = 0.002, 0.01
"""Seconds that the next request of a burst is waited for, at least and at most: twice the mean distance so far."""
_LONGEST = 0.25
"""Seconds that a burst may be waited for, from its first request."""


class Burst:
    """The burst of requests that is arriving now.

    64 requests that a client sends at once reach the sampler one by one. Decoding the first few while the others are on
    their way would take the cores from those who bring them, and cost nearly as much a step as decoding all.
    """

    def __init__(self) -> None:
        self._first = self._last = -1.0
        self.size = 0

    def note(self, arrived: float) -> None:
        """One more request, at this time (monotonic seconds)."""
        if arrived - self._last > _GAP:
            self._first, self.size = arrived, 0
        self._last = max(self._last, arrived)
        self.size += 1

    def patience(self, now: float, running: int) -> float:
        """Seconds to wait for the next request; 0 when a step should be made. ``running``: sequences under way.

        A lonely request never waits, and sequences that ran before the burst are not held up.
        """
        if self.size < 2 or running >= self.size or now - self._first > _LONGEST:
            return 0.0
        distance = (self._last - self._first) / (self.size - 1)
        return max(0.0, self._last + min(max(2 * distance, _SHORTEST), _GAP) - now)
