"""Probes any Tinker server over the wire: ``tinker-backend conformance --base-url URL``.

Nothing here imports the SDK or the server. ``wire`` holds the messages, ``client`` the raw HTTP client, ``oracle``
the numbers that the answers are compared with, ``probe`` the registry, and ``probes`` one claim a function.
"""

from .command import conformance
from .probe import Outcome, Verdict
from .suite import Suite, run_probes, select

__all__ = ["Outcome", "Suite", "Verdict", "conformance", "run_probes", "select"]
