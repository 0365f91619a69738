"""How long to wait between tries."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass


async def sleep(seconds: float) -> None:
    """All waits between tries go through here, so that tests need not sit them out."""
    await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Backoff:
    """Doubling waits: ``base * 2**n`` up to ``cap`` seconds, minus up to the share ``jitter``."""

    base: float
    cap: float
    jitter: float = 0.0

    def delay(self, tries: int) -> float:
        """Seconds to wait after the try with number ``tries`` (from 0)."""
        delay = min(self.base * 2 ** min(tries, 32), self.cap)
        return delay * (1 - self.jitter * random.random())


HTTP_RETRY = Backoff(base=0.5, cap=10.0, jitter=0.25)
OUTER_RETRY = Backoff(base=1.0, cap=30.0)
HTTP_RETRIES = 10
OUTER_RETRY_SECONDS = 300.0
BILLING_SLEEP_SECONDS = 5.0
