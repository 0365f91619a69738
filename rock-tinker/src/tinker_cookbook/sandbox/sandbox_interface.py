"""Where commands of a model run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from tinker_cookbook.exceptions import SandboxError


@dataclass(frozen=True)
class SandboxResult:
    """Outcome of a command."""

    stdout: str
    stderr: str
    exit_code: int
    metrics: dict[str, float] = field(default_factory=dict)


class SandboxTerminatedError(SandboxError):
    """The sandbox is gone."""


@runtime_checkable
class SandboxInterface(Protocol):
    """A machine for commands."""

    @property
    def sandbox_id(self) -> str:
        """Its name."""
        ...

    async def send_heartbeat(self) -> None:
        """Keep it from being cleared for idleness."""
        ...

    async def run_command(
        self, command: str, *, workdir: str | None = None, timeout: float = 60, max_output_bytes: int = 128 * 1024
    ) -> SandboxResult:
        """Run a shell command. A command past its timeout gives exit code 124."""
        ...

    async def read_file(self, path: str, *, max_bytes: int | None = None, timeout: float = 60) -> SandboxResult:
        """A file's text in ``stdout``; exit code 1 without it."""
        ...

    async def write_file(
        self, path: str, content: str | bytes, *, executable: bool = False, timeout: float = 60
    ) -> SandboxResult:
        """Replace a file; folders are made."""
        ...

    async def cleanup(self) -> None:
        """Remove the sandbox."""
        ...


class SandboxResource(Protocol):
    """Anything that must be kept alive and released."""

    async def send_heartbeat(self) -> None:
        """Keep it alive."""
        ...

    async def cleanup(self) -> None:
        """Release it."""
        ...
