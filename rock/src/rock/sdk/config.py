"""What a caller says about the sandbox that he wants."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SandboxConfig(BaseModel):
    """A sandbox to be started.

    Args:
        base_url: the admin; default `ROCK_BASE_URL`, else http://127.0.0.1:18080.
        cluster: sent as X-Cluster; default `ROCK_DEFAULT_CLUSTER`, else "local".
        extra_headers: sent with every request (a cluster's credentials).
        auto_clear_seconds: without any use for that long the admin stops the sandbox.
        startup_timeout: seconds until `start` gives up.
        network: "none", "host" (local runtime) or "bridge" (docker); None = what the service is configured for.
    """

    model_config = ConfigDict(extra="forbid")

    base_url: str = Field(default_factory=lambda: os.environ.get("ROCK_BASE_URL", "http://127.0.0.1:18080"))
    extra_headers: dict[str, str] = {}
    image: str = "python:3.11"
    image_os: str = "linux"
    auto_clear_seconds: float = Field(default=300, gt=0)
    startup_timeout: float = Field(default=180, gt=0)
    memory: str = "8g"
    cpus: float = Field(default=2, gt=0)
    limit_cpus: float | None = None
    num_gpus: float | None = None
    accelerator_type: str | None = None
    user_id: str | None = None
    experiment_id: str | None = None
    cluster: str = Field(default_factory=lambda: os.environ.get("ROCK_DEFAULT_CLUSTER", "local"))
    namespace: str | None = None
    registry_username: str | None = None
    registry_password: str | None = None
    use_kata_runtime: bool = False
    sandbox_id: str | None = None
    auto_archive_seconds: float | None = None
    auto_delete_seconds: float | None = None
    disk: str | None = "50G"
    network: str | None = None
    env: dict[str, str] = {}
    resources: dict[str, float] = {}

    @model_validator(mode="after")
    def _one_end(self) -> SandboxConfig:
        if self.auto_archive_seconds is not None and self.auto_delete_seconds is not None:
            raise ValueError("set auto_archive_seconds or auto_delete_seconds, not both")
        return self

    def headers(self) -> dict[str, str]:
        """Headers of every request; `extra_headers` win."""
        named = {
            "X-Cluster": self.cluster,
            "X-User-Id": self.user_id,
            "X-Experiment-Id": self.experiment_id,
            "X-Namespace": self.namespace,
        }
        return {**{name: value for name, value in named.items() if value}, **self.extra_headers}

    def start_body(self) -> dict[str, object]:
        """Body of /start_async."""
        left_out = {"base_url", "extra_headers", "user_id", "experiment_id", "cluster", "namespace"}
        body = self.model_dump(exclude=left_out, exclude_none=True)
        if not self.resources:
            del body["resources"]
        return {**body, "auto_clear_time_minutes": self.auto_clear_seconds / 60}


class SandboxGroupConfig(SandboxConfig):
    """Several equal sandboxes."""

    size: int = Field(default=2, ge=1)
    start_concurrency: int = Field(default=2, ge=1)
    start_retry_times: int = Field(default=3, ge=1)
