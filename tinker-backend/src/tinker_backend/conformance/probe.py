"""The registry of probes: each is a function that states one claim and raises when the claim does not hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import httpx

from .client import Failed, Overdue, Refused

if TYPE_CHECKING:
    from .suite import Suite


class Verdict(Enum):
    """How a probe ended."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Outcome:
    """A probe's verdict, with what was measured or what went wrong."""

    name: str
    claim: str
    verdict: Verdict
    detail: str
    seconds: float


class Skipped(Exception):
    """The server does not offer what the probe needs; the message says what."""


@dataclass(frozen=True)
class Probe:
    """A named claim and the function that tests it; what the function returns is the detail of a pass."""

    name: str
    group: str
    claim: str
    test: Callable[[Suite], str]

    def run(self, suite: Suite) -> Outcome:
        """Runs the test; no exception of the wire escapes."""
        started = time.monotonic()
        try:
            verdict, detail = Verdict.PASS, self.test(suite)
        except Skipped as reason:
            verdict, detail = Verdict.SKIP, str(reason)
        except AssertionError as difference:
            verdict, detail = Verdict.FAIL, str(difference)
        except (Refused, Failed, Overdue, httpx.HTTPError) as error:
            verdict, detail = Verdict.FAIL, f"{type(error).__name__}: {error}"
        except (KeyError, ValueError, TypeError, IndexError) as error:
            verdict, detail = Verdict.FAIL, f"an answer has another form than expected: {type(error).__name__}: {error}"
        return Outcome(self.name, self.claim, verdict, detail, time.monotonic() - started)


PROBES: dict[str, Probe] = {}
"""Every probe by name, in the order in which they run."""


def probe(claim: str) -> Callable[[Callable[[Suite], str]], Callable[[Suite], str]]:
    """Registers a function as a probe of ``claim``; its module is its group."""

    def register(test: Callable[[Suite], str]) -> Callable[[Suite], str]:
        name = test.__name__.replace("_", "-")
        PROBES[name] = Probe(name, test.__module__.rsplit(".", 1)[1], claim, test)
        return test

    return register


def check(holds: bool, message: str) -> None:
    """Raises an AssertionError with ``message`` unless ``holds`` (also under ``python -O``)."""
    if not holds:
        raise AssertionError(message)


def check_refused(action: Callable[[], object], what: str, allow: tuple[int, ...] = ()) -> str:
    """Checks that ``action`` is refused as the client's mistake: a 4xx, or a failed future of category ``user``.

    408, 409 and 429 do not count, since clients repeat those for minutes.
    """
    try:
        action()
    except Refused as refusal:
        repeated = {408, 409, 429} - set(allow)
        check(
            400 <= refusal.status < 500 and refusal.status not in repeated,
            f"{what} is answered with HTTP {refusal.status}, which clients repeat: {refusal.response.text[:200]}",
        )
        return f"HTTP {refusal.status}: {refusal.response.text[:160]}"
    except Failed as failure:
        check(failure.category == "user", f"{what} fails with category {failure.category!r}, not 'user': {failure}")
        return f"failed future, {str(failure)[:160]}"
    raise AssertionError(f"{what} is accepted")
