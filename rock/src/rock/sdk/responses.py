"""What the SDK's calls return."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore")


class CommandResponse(_Answer):
    """Outcome of `Sandbox.execute`. Streams above 8 MiB are cut in the middle; the files then hold them whole."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    stdout_file: str | None = None
    stderr_file: str | None = None


class Observation(_Answer):
    """Outcome of a command in a session or of a long command.

    `output` holds both streams. `output_file`: where the whole output is, if it was cut or a long command wrote it.
    """

    output: str = ""
    exit_code: int | None = None
    failure_reason: str = ""
    expect_string: str = ""
    output_file: str | None = None


class SandboxStatus(_Answer):
    """State of a sandbox, as the admin knows it. Times are ISO 8601 in UTC."""

    sandbox_id: str
    state: str = ""
    is_alive: bool = False
    message: str = ""
    failure_reason: str = ""
    status: dict[str, dict[str, Any]] = {}
    image: str = ""
    host_name: str = ""
    host_ip: str = ""
    cpus: float | None = None
    memory: str | None = None
    user_id: str | None = None
    experiment_id: str | None = None
    namespace: str | None = None
    create_time: str | None = None
    start_time: str | None = None
    stop_time: str | None = None
    auto_stop_time: str | None = None
    state_history: list[dict[str, Any]] = []


class IsAlive(_Answer):
    is_alive: bool = False
    message: str = ""


class FileResult(_Answer):
    """Outcome of a write or an upload. `refused`: names that were not taken."""

    success: bool = True
    message: str = ""
    file_name: str = ""
    refused: list[str] = []


class ReadResult(_Answer):
    content: str = ""
