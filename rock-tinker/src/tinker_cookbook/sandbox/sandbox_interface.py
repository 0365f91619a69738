"""Where commands of a model run."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import chz

from tinker_cookbook.exceptions import SandboxError


@chz.chz
class SandboxResult:
    """Outcome of a command."""

    stdout: str
    stderr: str
    exit_code: int
    metrics: dict[str, Any] = chz.field(default_factory=dict)


class SandboxTerminatedError(SandboxError):
    """The sandbox is gone."""


@runtime_checkable
class SandboxInterface(Protocol):
    """A machine for commands."""

    @property
    def sandbox_id(self) -> str:
        """Its name."""
        ...

    async def send_heartbeat(self, timeout: int = 30) -> None:
        """Keep it from being cleared for idleness."""
        ...

    async def run_command(
        self, command: str, workdir: str | None = None, timeout: int = 60, max_output_bytes: int | None = None
    ) -> SandboxResult:
        """Run a shell command. A command past its timeout gives exit code 124. ``max_output_bytes`` None: the sandbox's own
        limit."""
        ...

    async def read_file(self, path: str, max_bytes: int | None = None, timeout: int = 60) -> SandboxResult:
        """A file's text in ``stdout``; exit code 1 without it."""
        ...

    async def write_file(
        self, path: str, content: str | bytes, executable: bool = False, timeout: int = 60
    ) -> SandboxResult:
        """Replace a file; folders are made."""
        ...

    async def cleanup(self) -> None:
        """Remove the sandbox."""
        ...


class SandboxResource:
    """A sandbox as something that must be kept alive and released."""

    def __init__(self, sandbox: SandboxInterface) -> None:
        self.sandbox = sandbox

    async def send_heartbeat(self, timeout: int = 30) -> None:
        """Keep it alive."""
        await self.sandbox.send_heartbeat(timeout)

    async def cleanup(self) -> None:
        """Release it."""
        await self.sandbox.cleanup()
