"""What a job is: the sandbox, what goes into it, and what runs there. Unknown fields are refused by name."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rock.errors import ConfigError
from rock.sdk.config import SandboxConfig

DEFAULT_JOBS_DIR = "/data/logs/user-defined/jobs"
DEFAULT_PYTHON = "/opt/harbor/bin/python"
DEFAULT_PYTHON_PATH = "/opt/rock"
OWN_AGENTS = "rock.harbor.agents:"
LOCAL_ENVIRONMENT = "rock.harbor.local_environment:LocalEnvironment"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ProxySection(_Section):
    """The ModelService in the sandbox.

    Args:
        enabled: without it the agent needs another endpoint.
        host: address that it listens on; None: loopback, or every address when Docker containers must reach it.
        port: its port in the sandbox.
    """

    enabled: bool = True
    host: str | None = None
    port: int = Field(default=28080, ge=1, le=65535)
    models: list[str] = ["local"]


class JobEnvironment(SandboxConfig):
    """The sandbox of a job (all fields of SandboxConfig) and what Harbor makes in it.

    Args:
        uploads: pairs [path here, path in the sandbox]; files or folders.
        python: Python in the sandbox that has harbor, mini-swe-agent, starlette and uvicorn.
        python_path: folder in the sandbox that holds the package rock for that Python.
        type, import_path: Harbor's environment for tasks: one of its own ("docker"), or a class.
        kwargs: arguments of that class.
        mounts: docker: further mounts of a task's container, {type: bind, source, target, read_only}, of the sandbox's files.
    """

    uploads: list[tuple[str, str]] = []
    python: str = DEFAULT_PYTHON
    python_path: str = DEFAULT_PYTHON_PATH
    proxy: ProxySection = ProxySection()
    type: str | None = None
    import_path: str | None = None
    kwargs: dict[str, Any] = {}
    mounts: list[dict[str, Any]] = []
    force_build: bool = False
    delete: bool = True
    override_cpus: float | None = None
    override_memory_mb: int | None = None
    override_storage_mb: int | None = None

    @model_validator(mode="after")
    def _one_environment(self) -> Self:
        if self.type is not None and self.import_path is not None:
            raise ValueError("set type or import_path, not both")
        return self

    @property
    def uses_docker(self) -> bool:
        """Whether tasks run as containers of a Docker daemon in the sandbox."""
        return self.import_path is None and self.type in (None, "docker")

    def sandbox_config(self) -> SandboxConfig:
        """The part that describes the sandbox."""
        return SandboxConfig(**{name: getattr(self, name) for name in SandboxConfig.model_fields})

    def harbor_environment(self, mounts: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """The part that describes Harbor's environment. ``mounts`` come beside those of the configuration."""
        kind: dict[str, Any] = (
            {"import_path": self.import_path} if self.import_path else {"type": self.type or "docker"}
        )
        kwargs = dict(self.kwargs)
        if self.import_path == LOCAL_ENVIRONMENT:
            kwargs.setdefault("agent_pythons", [self.python])
        names = ("force_build", "delete", "override_cpus", "override_memory_mb", "override_storage_mb")
        if self.uses_docker and (self.mounts or mounts):
            kind["mounts"] = [*self.mounts, *mounts]
        return {**kind, "kwargs": kwargs, **{name: getattr(self, name) for name in names}}


class AgentSection(_Section):
    name: str | None = None
    import_path: str | None = None
    model_name: str | None = None
    override_timeout_sec: float | None = Field(default=None, gt=0)
    override_setup_timeout_sec: float | None = Field(default=None, gt=0)
    max_timeout_sec: float | None = Field(default=None, gt=0)
    kwargs: dict[str, Any] = {}
    env: dict[str, str] = {}


class DatasetSection(_Section):
    path: str | None = None
    name: str | None = None
    version: str | None = None
    registry_path: str | None = None
    registry_url: str | None = None
    task_names: list[str] | None = None
    exclude_task_names: list[str] | None = None
    n_tasks: int | None = Field(default=None, ge=1)


class TaskSection(_Section):
    path: str


class VerifierSection(_Section):
    override_timeout_sec: float | None = Field(default=None, gt=0)
    max_timeout_sec: float | None = Field(default=None, gt=0)
    disable: bool = False
    env: dict[str, str] = {}


class RetrySection(_Section):
    max_retries: int = Field(default=0, ge=0)
    include_exceptions: list[str] | None = None
    exclude_exceptions: list[str] | None = None


class JobConfig(_Section):
    """What all jobs share.

    Args:
        experiment_id: sent to the admin with the sandbox.
        job_name: names files and folders in the sandbox; made up when it is not given.
    """

    experiment_id: str
    job_name: str = Field(default_factory=lambda: f"job-{uuid.uuid4().hex[:12]}", pattern=r"^[A-Za-z0-9][\w.-]{0,119}$")
    environment: JobEnvironment = JobEnvironment()
    labels: dict[str, str] = {}

    @property
    def budget(self) -> float:
        """Seconds for the whole job."""
        raise NotImplementedError

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> Self:
        """Reads a YAML file; ``overrides`` replace fields, and are merged into those that are mappings.

        Raises:
            ConfigError: the file cannot be read, or names the field that is wrong.
        """
        try:
            content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path} must hold a mapping with experiment_id, environment, …")
        try:
            return cls.model_validate(_merged(content, overrides))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise ConfigError(
                f"{path}: field {field!r}: {first['msg']} (value: {str(first['input'])[:200]!r})"
            ) from error


class BashJobConfig(JobConfig):
    """A script in a sandbox.

    Args:
        script: text of a bash script.
        logs: files or folders in the sandbox that ``export`` brings back.
    """

    kind: Literal["bash"] = "bash"
    script: str
    timeout: float = Field(default=7200, gt=0)
    cwd: str | None = None
    logs: list[str] = []
    environment: JobEnvironment = JobEnvironment(proxy=ProxySection(enabled=False))

    @property
    def budget(self) -> float:
        """Seconds for the whole job."""
        return self.timeout


class HarborJobConfig(JobConfig):
    """A Harbor job in a sandbox. ``timeout`` None: the agents' longest time, the verifier's, and ten minutes."""

    kind: Literal["harbor"] = "harbor"
    timeout: float | None = Field(default=None, gt=0)
    jobs_dir: str = DEFAULT_JOBS_DIR
    n_attempts: int = Field(default=1, ge=1)
    n_concurrent_trials: int = Field(default=1, ge=1)
    timeout_multiplier: float = Field(default=1.0, gt=0)
    agent_timeout_multiplier: float | None = Field(default=None, gt=0)
    verifier_timeout_multiplier: float | None = Field(default=None, gt=0)
    agent_setup_timeout_multiplier: float | None = Field(default=None, gt=0)
    environment_build_timeout_multiplier: float | None = Field(default=None, gt=0)
    retry: RetrySection = RetrySection()
    verifier: VerifierSection = VerifierSection()
    agents: list[AgentSection] = [AgentSection()]
    datasets: list[DatasetSection] = []
    tasks: list[TaskSection] = []
    artifacts: list[str] = []
    debug: bool = False

    @model_validator(mode="after")
    def _has_tasks(self) -> Self:
        if not self.datasets and not self.tasks:
            raise ValueError("datasets and tasks are both empty; name at least one dataset or task")
        return self

    @property
    def budget(self) -> float:
        """Seconds for the whole job."""
        if self.timeout is not None:
            return self.timeout
        agent = max(agent.override_timeout_sec or 1800.0 for agent in self.agents)
        return (agent + (self.verifier.override_timeout_sec or 600.0)) * self.timeout_multiplier + 600.0

    @property
    def needs_agent_python(self) -> bool:
        """Whether an agent runs in the task's container with the Python of the sandbox."""
        return any((agent.import_path or "").startswith(OWN_AGENTS) for agent in self.agents)

    def harbor_config(self, base_url: str | None, mounts: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        """Harbor's own job configuration.

        Args:
            base_url: the model endpoint that agents get unless they name one.
            mounts: what task containers see of the sandbox beside the configured mounts.
        """
        agents = []
        for agent in self.agents:
            section = agent.model_dump(exclude_none=True)
            if agent.import_path is not None and agent.import_path.startswith(OWN_AGENTS):
                # Harbor's parsing of model names imports litellm: seconds of start-up for nothing.
                section["skip_model_parsing"] = True
            if base_url is not None and agent.model_name is not None:
                section["env"] = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "local", **agent.env}
            agents.append(section)
        names = (
            "job_name", "jobs_dir", "n_attempts", "n_concurrent_trials", "timeout_multiplier", "agent_timeout_multiplier",
            "verifier_timeout_multiplier", "agent_setup_timeout_multiplier", "environment_build_timeout_multiplier", "artifacts",
            "debug",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in names},
            "quiet": True,
            "skip_credential_checks": True,
            "retry": self.retry.model_dump(exclude_none=True),
            "environment": self.environment.harbor_environment(mounts),
            "verifier": self.verifier.model_dump(exclude_none=True),
            "agents": agents,
            "datasets": [dataset.model_dump(exclude_none=True) for dataset in self.datasets],
            "tasks": [task.model_dump() for task in self.tasks],
        }


def _merged(content: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    merged = dict(content)
    for name, value in overrides.items():
        below = merged.get(name)
        merged[name] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
