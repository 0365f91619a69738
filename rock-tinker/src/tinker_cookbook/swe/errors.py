"""Errors of the SWE recipes.

SweError
├── SettingError           an option, a file or a value is missing or wrong; the message names it and the fix
├── RolloutFailed          a rollout that must not be used for training or scoring; names the phase
│   └── DeadlineExceeded   one budget ran out; names which one
├── RequestRefused         one model call that is answered with an OpenAI error body; the rollout goes on
└── BackendFailed          the backend did not start, or ended early
"""

from __future__ import annotations

from typing import Any


class SweError(Exception):
    """Base of this package's errors."""


class SettingError(SweError):
    """An option, a file or a value is missing or wrong. The message names it, its value and the fix."""


class RolloutFailed(SweError):
    """A rollout that must not be used, neither for training nor as a score.

    Args:
        phase: where it failed: submit, agent, sampling, verifier, export.
        reason: one sentence.
    """

    def __init__(self, phase: str, reason: str) -> None:
        super().__init__(f"{phase}: {reason}")
        self.phase = phase
        self.reason = reason


class DeadlineExceeded(RolloutFailed):
    """A budget of seconds ran out."""

    def __init__(self, phase: str, budget: str, seconds: float) -> None:
        super().__init__(phase, f"the {budget} of {seconds:.0f} s ran out; raise it where it is configured")
        self.budget = budget
        self.seconds = seconds


class RequestRefused(SweError):
    """A model call that is answered with an HTTP error in OpenAI's shape.

    Args:
        status: HTTP status, e.g. 400.
        code: OpenAI's machine-readable code, e.g. `context_length_exceeded`.
        param: the request field at fault.
    """

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class BackendFailed(SweError):
    """The backend of this job did not become ready, or ended while it was needed."""
