"""Errors that a rocklet answers with status 511 (504 for time-outs)."""

from __future__ import annotations

from typing import Any


class RockletError(Exception):
    """An operation failed; the message tells the client what and why."""

    status = 511

    def __init__(self, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.extra = extra


class SessionMissing(RockletError):
    """No session of that name."""


class SessionExists(RockletError):
    """A session of that name is open already."""


class SessionEnded(RockletError):
    """The session's shell has exited."""


class NonZeroExit(RockletError):
    """A command that was to succeed ended with another exit code than 0."""


class FileProblem(RockletError):
    """A file could not be read or written."""


class JobMissing(RockletError):
    """No such job."""


class TimeLimit(RockletError):
    """A command ran past its time-out and was killed."""

    status = 504
