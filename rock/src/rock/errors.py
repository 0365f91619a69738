"""Errors of this package.

```
RockError
├── ConfigError            a configuration names a wrong key or value
├── TransportError         the admin could not be reached or gave no usable answer
├── SandboxError           an operation on a sandbox failed
│   ├── SandboxStartError  it did not come up (phase and reason in the message)
│   ├── SandboxNotFound    no such sandbox
│   ├── SandboxGone        it has stopped or died
│   └── CommandTimeout     a command ran past its time-out
├── ModelServiceError      the ModelService failed or its session is over
└── JobError               a job failed; `phase` tells where
```
"""

from __future__ import annotations

from typing import Any


class RockError(Exception):
    """Root of this package's errors."""


class ConfigError(RockError):
    """A configuration names a wrong key or value."""


class TransportError(RockError):
    """The admin could not be reached, or its answer was not an envelope."""


class SandboxError(RockError):
    """An operation on a sandbox failed. `details` holds what else the admin said (partial output, say)."""

    def __init__(self, message: str, sandbox_id: str = "") -> None:
        super().__init__(message)
        self.sandbox_id = sandbox_id
        self.details: dict[str, Any] = {}


class SandboxStartError(SandboxError):
    """The sandbox did not come up; the message names the phase and the reason."""


class SandboxNotFound(SandboxError):
    """The admin knows no sandbox of that id."""


class SandboxGone(SandboxError):
    """The sandbox has stopped or died."""


class CommandTimeout(SandboxError):
    """A command ran past its time-out and was killed."""


class ModelServiceError(RockError):
    """The ModelService failed or its session is over."""


class JobError(RockError):
    """A job failed.

    Args:
        phase: "start", "model-service", "upload", "submit", "wait" or "collect".
    """

    def __init__(self, message: str, phase: str = "") -> None:
        super().__init__(message)
        self.phase = phase
