"""admin.yaml: the configuration of admin and worker, and sizes as users write them."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rock.errors import ConfigError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str | int | float, name: str = "size") -> int:
    """Bytes of "8g", "512m", "1.5GiB", 1024.

    Raises:
        ConfigError: not a size.
    """
    match = _SIZE.fullmatch(str(text))
    if match is None or float(match.group(1)) <= 0:
        raise ConfigError(f"{name} {text!r} is not a size; write for example 512m or 8g")
    return int(float(match.group(1)) * _UNITS[match.group(2).lower()])


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AdminConfig(_Section):
    host: str = "127.0.0.1"
    port: int = Field(default=18080, ge=0, le=65535)


class WorkerConfig(_Section):
    """Address of the host rocklet. `urls`: workers on other machines, in place of the one at host and port.

    Args:
        max_sandboxes, total_cpus, total_memory: what all sandboxes of this worker together may have; null = not bounded.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=22555, ge=0, le=65535)
    urls: list[str] = []
    max_sandboxes: int = Field(default=128, ge=1)
    total_cpus: float | None = Field(default=None, gt=0)
    total_memory: str | None = None

    def capacity(self) -> dict[str, float]:
        """Amounts by name: sandboxes, cpus, memory (bytes); those that are bounded."""
        found: dict[str, float] = {"sandboxes": self.max_sandboxes}
        if self.total_cpus is not None:
            found["cpus"] = self.total_cpus
        if self.total_memory is not None:
            found["memory"] = parse_size(self.total_memory, "worker.total_memory")
        return found


class PlacementConfig(_Section):
    """Which worker a sandbox goes to.

    Args:
        type: "workers": those of the section worker; "ray": the nodes of a Ray cluster, each with a worker of its own.
        address: of the Ray cluster; "auto" = the one on this machine.
        namespace: of the reservations in Ray; admins that share a cluster have different ones.
        wait_seconds: how long a start waits for room in the cluster.
    """

    type: Literal["workers", "ray"] = "workers"
    address: str = "auto"
    namespace: str = "rock"
    wait_seconds: float = Field(default=10.0, gt=0)


class BindConfig(_Section):
    source: str
    target: str
    writable: bool = False


class RuntimeConfig(_Section):
    """How sandboxes are made.

    Args:
        type: "local" (namespaces) or "docker".
        network: what sandboxes may have: "none" or "host" (local); "none" or "bridge" (docker).
        image_aliases: image name asked for -> image name used.
        trees, binds, etc: what every local sandbox sees of this machine (see docs/rock.md).
        privileged: docker: "auto" tries --privileged once and falls back to single capabilities; "yes"; "no".
        rocklet_command: docker: command that starts the rocklet of the image itself instead of the machine's.
    """

    type: Literal["local", "docker"] = "local"
    network: Literal["none", "host", "bridge"] = "none"
    image_aliases: dict[str, str] = {}
    trees: list[str] = []
    binds: list[BindConfig] = []
    etc: list[str] = []
    docker_url: str | None = None
    privileged: Literal["auto", "yes", "no"] = "no"
    rocklet_command: list[str] | None = None
    max_memory: str = "64g"
    max_cpus: float = 16


class StateConfig(_Section):
    """`database_url`: any SQLAlchemy URL; null = SQLite file admin.db in the folder."""

    folder: str = "./rock-state"
    database_url: str | None = None


class LifecycleConfig(_Section):
    """Times in seconds. `keep_stopped`: a stopped sandbox can be restarted with its files until it is deleted."""

    auto_clear_seconds: float = Field(default=6 * 3600.0, gt=0)
    reconcile_interval_seconds: float = Field(default=5.0, gt=0)
    default_startup_timeout_seconds: float = Field(default=600.0, gt=0)
    max_startup_timeout_seconds: float = Field(default=1800.0, gt=0)
    forget_deleted_after_seconds: float = Field(default=7 * 86400.0, gt=0)
    keep_stopped: bool = False


class AuthConfig(_Section):
    """`key_file`: one key a line, mode 0600; null = no key asked (loopback only). `encryption_key_file`: base64 of 32
    bytes, mode 0600, for keys that are stored with a sandbox."""

    key_file: str | None = None
    encryption_key_file: str | None = None


class LogConfig(_Section):
    level: str = "info"
    traceback: bool = False


class RockConfig(_Section):
    """The whole of admin.yaml. Relative paths are relative to the file."""

    admin: AdminConfig = AdminConfig()
    worker: WorkerConfig = WorkerConfig()
    placement: PlacementConfig = PlacementConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    state: StateConfig = StateConfig()
    lifecycle: LifecycleConfig = LifecycleConfig()
    auth: AuthConfig = AuthConfig()
    logs: LogConfig = LogConfig()

    @property
    def state_folder(self) -> Path:
        return Path(self.state.folder)

    @property
    def database_url(self) -> str:
        return self.state.database_url or f"sqlite:///{self.state_folder.absolute() / 'admin.db'}"

    @property
    def worker_urls(self) -> list[str]:
        if self.placement.type == "ray" and not self.worker.urls:
            return []
        return self.worker.urls or [f"http://{self.worker.host}:{self.worker.port}"]


def load_config(path: str | Path | None) -> RockConfig:
    """Reads admin.yaml (None: all defaults).

    Raises:
        ConfigError: names the key or file that is wrong.
    """
    if path is None:
        return RockConfig()
    path = Path(path)
    try:
        data: Any = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must hold sections such as 'admin:', found {type(data).__name__}")
    try:
        config = RockConfig.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"{path}: {problems}") from error
    base = path.absolute().parent
    config.state.folder = str(base / config.state.folder)
    for name in ("key_file", "encryption_key_file"):
        value = getattr(config.auth, name)
        if value is not None:
            setattr(config.auth, name, str(base / value))
    check_exposure(config)
    return config


def check_exposure(config: RockConfig) -> None:
    """Refuses an admin that others could use without a key.

    Raises:
        ConfigError: admin.host is no loopback address and no key file is set.
    """
    if config.admin.host not in ("127.0.0.1", "localhost", "::1") and config.auth.key_file is None:
        raise ConfigError(f"admin.host {config.admin.host} is open to the network: set auth.key_file, or use 127.0.0.1")


def read_key_file(path: str | Path) -> list[str]:
    """Keys of a key file, one a line.

    Raises:
        ConfigError: the file is missing, empty, or other users may read it.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        keys = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"key file {path}: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"key file {path} may be read by others (mode {stat.S_IMODE(mode):o}): chmod 600 it")
    if not keys:
        raise ConfigError(f"key file {path} holds no key")
    return keys


def write_key_file(path: Path, key: str) -> None:
    """Writes a new key file with mode 0600; an existing one is not touched.

    Raises:
        FileExistsError: there is one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as stream:
        stream.write(key + "\n")
    try:
        os.link(draft, path)  # whole or not at all
    finally:
        draft.unlink()
