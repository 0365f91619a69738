"""Bodies of the admin's routes."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from rock.rocklet import models as rocklet


class StartRequest(BaseModel):
    """A sandbox to be started. Unknown fields are ignored, as clients of many versions send them."""

    model_config = ConfigDict(extra="ignore")

    image: str
    image_os: str = "linux"
    auto_clear_time_minutes: float | None = Field(default=None, gt=0)
    auto_clear_seconds: float | None = Field(default=None, gt=0)
    pull: str = "missing"
    memory: str = "8g"
    cpus: float = Field(default=2, gt=0)
    limit_cpus: float | None = None
    pids: int | None = Field(default=4096, ge=16, le=1 << 22)
    sandbox_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    registry_username: str | None = None
    registry_password: str | None = None
    startup_timeout: float | None = Field(default=None, gt=0)
    use_kata_runtime: bool = False
    auto_archive_seconds: float | None = None
    auto_delete_seconds: float | None = None
    disk: str | None = "50G"
    num_gpus: float | None = None
    accelerator_type: str | None = None
    network: str | None = None
    env: dict[str, str] = {}
    resources: dict[str, float] = {}


class SandboxRef(BaseModel):
    sandbox_id: str


class BatchRequest(BaseModel):
    sandbox_ids: list[str]


class CommitBody(BaseModel):
    sandbox_id: str
    image_tag: str
    username: str | None = None
    password: str | None = None


class ExecuteBody(rocklet.Command, SandboxRef):
    pass


class JobStartBody(rocklet.JobStart, SandboxRef):
    pass


class JobPollBody(rocklet.JobPoll, SandboxRef):
    pass


class JobRefBody(rocklet.JobRef, SandboxRef):
    pass


class CreateSessionBody(rocklet.CreateSession, SandboxRef):
    pass


class RunInSessionBody(rocklet.BashAction, SandboxRef):
    pass


class InterruptBody(rocklet.Interrupt, SandboxRef):
    pass


class CloseSessionBody(rocklet.CloseSession, SandboxRef):
    pass


class ReadFileBody(rocklet.ReadFile, SandboxRef):
    pass


class WriteFileBody(rocklet.WriteFile, SandboxRef):
    pass
