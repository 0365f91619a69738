"""What every runtime gives: the one interface behind which Docker and local sandboxes look the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field


class SandboxRequest(BaseModel):
    """What a worker is asked to start. Sizes in bytes."""

    model_config = ConfigDict(extra="forbid")

    sandbox_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    image: str
    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = 4096
    disk_bytes: int | None = None
    network: str | None = None
    pull: str = "missing"
    registry_username: str | None = None
    registry_password: str | None = None
    startup_timeout: float = 600.0
    env: dict[str, str] = {}


@dataclass
class Phase:
    """One step of a start: waiting, running, success, failed or timeout."""

    status: str = "waiting"
    message: str = ""
    started_at: float | None = None
    completed_at: float | None = None


@dataclass
class StartProgress:
    """The two phases of a start, in order."""

    image_pull: Phase = field(default_factory=Phase)
    docker_run: Phase = field(default_factory=Phase)


class RunningSandbox(Protocol):
    """A started sandbox."""

    sandbox_id: str
    image: str

    @property
    def alive(self) -> bool: ...

    @property
    def end_reason(self) -> str | None:
        """Why it ended; None while it runs."""
        ...

    @property
    def socket_path(self) -> str:
        """UNIX socket of its rocklet, as this process can open it."""
        ...

    async def revive(self) -> bool:
        """Starts the rocklet again after it died. False if the sandbox itself is gone."""
        ...

    async def commit(self, tag: str) -> dict[str, Any]:
        """Stores its present content as image `tag`."""
        ...

    async def stop(self) -> None:
        """Ends it and removes all that it left."""
        ...


class Runtime(Protocol):
    """Makes sandboxes."""

    name: str

    async def open(self) -> None:
        """Prepares for work and removes what an earlier, killed worker left."""
        ...

    async def start(self, request: SandboxRequest, progress: StartProgress) -> RunningSandbox:
        """Starts a sandbox whose rocklet answers.

        Raises:
            SandboxStartError: phase and reason; nothing is left behind.
        """
        ...

    async def remove_image(self, name: str) -> None:
        """Forgets an image that `commit` made."""
        ...

    async def close(self) -> None:
        """Ends all sandboxes of this process."""
        ...
