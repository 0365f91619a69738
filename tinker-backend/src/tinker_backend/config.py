"""The two configuration files: ``runtime.yaml`` (the server) and ``engine.yaml`` (the models and their hardware).

Both are read strictly: an unknown key is refused with the nearest known name, and every error names the file, the
key, the value and what would be right. Relative paths are relative to the file that holds them.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .engine_rules import check_engine
from .errors import ConfigError


class Section(BaseModel):
    """A mapping of a configuration file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


# --- runtime.yaml ----------------------------------------------------------------------------------------------------


class BackendSection(Section):
    """Where the server listens and who may come in."""

    host: str = "127.0.0.1"
    port: int = Field(default=19210, ge=0, le=65535)
    api_keys_file: Path | None = None
    """File of hashed API keys (``tinker-backend keys``). None: every caller is the one local user."""
    public_url: str | None = None
    """Base of the download links, when clients reach the server under another address than they asked."""


class RuntimeSection(Section):
    """The engine process."""

    python: str | None = None
    engine: Path = Path("engine.yaml")
    start_timeout_seconds: float = Field(default=600, gt=0)
    rollout_only: bool = False
    """Serve base models and saved weights for sampling only; every training request is refused."""
    operation_timeout_seconds: float = Field(default=3600, gt=0)
    """Longest time that one call to the runtime may take before the runtime counts as hung and is restarted."""
    command: list[str] | None = None
    """A whole command instead of ``<python> -m tinker_backend.runtime``; ``--engine`` and so on are appended."""


class CheckpointSection(Section):
    """Where weights are kept."""

    folder: Path = Path("checkpoints")


class LedgerSection(Section):
    """Where the durable record of sessions, runs and operations is kept."""

    url: str | None = None
    """``sqlite:///FILE`` or a PostgreSQL URL; None: the SQLite file ``ledger.db`` beside the checkpoint folder;
    ``memory``: nothing survives."""
    fsync: bool = False
    """Whether every commit waits for the disk. Without it accepted work survives the death of any process, and a power
    cut may take the last moments; with it a power cut takes nothing. For SQLite; PostgreSQL has settings of its own."""

    @field_validator("url")
    @classmethod
    def _known_database(cls, url: str | None) -> str | None:
        scheme, _, rest = (url or "").partition("://")
        if url in (None, "memory") or scheme.partition("+")[0] == "postgresql":
            return url
        if scheme in ("sqlite", "sqlite+pysqlite") and rest.startswith("/") and rest != "/":
            return url
        raise ValueError(
            "no ledger is kept there; give sqlite:///FILE, postgresql+psycopg://USER:PASSWORD@HOST/DATABASE, or memory"
        )

    def resolved(self, base: Path) -> Self:
        """The same with an absolute path of the SQLite file."""
        scheme, _, path = (self.url or "").partition(":///")
        if not scheme.startswith("sqlite"):
            return self
        return self.model_copy(update={"url": f"{scheme}:///{base / path}"})


class LogSection(Section):
    """Where and how much is logged."""

    folder: Path = Path("logs")
    level: Literal["debug", "info", "warning", "error"] = "info"


class LossSection(Section):
    """Losses that the server computes by another definition than their own."""

    stable_reinforce: Literal["truncated_importance_sampling"] | None = None
    """What stands in for ``stable_reinforce``, whose formula is not published. None: it is refused."""


class LimitSection(Section):
    """Bounds that keep one client from harming the others."""

    body_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    small_body_bytes: int = Field(default=4 * 1024 * 1024, gt=0)
    """The same for requests that carry neither datums nor prompts nor a loss."""
    body_seconds: float = Field(default=300, gt=0)
    """How long a body may take to come in."""
    header_bytes: int = Field(default=32 * 1024, gt=0)
    datums_per_request: int = Field(default=4096, gt=0)
    samples_per_request: int = Field(default=1024, gt=0)
    pending_samples: int = Field(default=16384, gt=0)
    """Accepted and unfinished samples; more are answered with 429."""
    pending_bytes: int = Field(default=2 * 1024**3, gt=0)
    """Bytes of accepted and unfinished training requests; more are answered with 429."""
    result_cache_bytes: int = Field(default=256 * 1024 * 1024, gt=0)
    long_poll_seconds: float = Field(default=25, gt=0, le=40)
    gap_seconds: float = Field(default=60, gt=0)
    """How long a run waits for a missing seq_id before the requests behind it fail."""
    result_keep_seconds: float = Field(default=24 * 3600, gt=0)
    ephemeral_samplers_per_run: int = Field(default=64, gt=1)
    resident_samplers: int = Field(default=32, gt=1)
    """Weights versions that the runtime holds in memory; the least used beyond it are read again when needed."""
    session_lapse_seconds: float = Field(default=300, gt=0)
    """A session without heartbeat, request or poll for so long has vanished: its unfinished samples are cancelled."""
    run_idle_seconds: float = Field(default=3600, gt=0)
    """A run without requests for so long is written out and leaves the runtime's memory until its next request."""


class RuntimeConfig(Section):
    """``runtime.yaml``: the server."""

    backend: BackendSection = BackendSection()
    runtime: RuntimeSection = RuntimeSection()
    checkpoints: CheckpointSection = CheckpointSection()
    ledger: LedgerSection = LedgerSection()
    logs: LogSection = LogSection()
    losses: LossSection = LossSection()
    limits: LimitSection = LimitSection()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads the file. Raises ConfigError."""
        return _load(cls, Path(path)).resolved(Path(path).resolve().parent)

    def resolved(self, base: Path) -> Self:
        """The same with absolute paths."""
        keys = self.backend.api_keys_file
        return self.model_copy(
            update={
                "backend": self.backend.model_copy(update={"api_keys_file": keys and _absolute(keys, base)}),
                "runtime": self.runtime.model_copy(update={"engine": _absolute(self.runtime.engine, base)}),
                "checkpoints": CheckpointSection(folder=_absolute(self.checkpoints.folder, base)),
                "ledger": self.ledger.resolved(base),
                "logs": self.logs.model_copy(update={"folder": _absolute(self.logs.folder, base)}),
            }
        )

    @property
    def ledger_url(self) -> str:
        """The SQLAlchemy URL in effect, or ``memory``."""
        return self.ledger.url or f"sqlite:///{self.checkpoints.folder.parent / 'ledger.db'}"

    def check_listen_address(self) -> None:
        """Raises ConfigError when the server would be open to others without keys."""
        if self.backend.api_keys_file is None and not is_loopback(self.backend.host):
            raise ConfigError(
                f"backend.host {self.backend.host!r} can be reached from other machines, but backend.api_keys_file is "
                "not set: make a key with `tinker-backend keys create` and name its file, or listen on 127.0.0.1"
            )


def _absolute(path: Path, base: Path) -> Path:
    """The path without ``..``, as it is shown to people."""
    return Path(os.path.normpath(base / path.expanduser()))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- engine.yaml -----------------------------------------------------------------------------------------------------

STRATEGIES = ("torch", "fsdp2_train", "vllm")


class StrategySection(Section):
    """How a role computes: the embedded ``torch``, or the cluster's ``fsdp2_train`` and ``vllm``."""

    strategy_name: Literal["torch", "fsdp2_train", "vllm"] = "torch"
    strategy_config: dict[str, Any] = Field(default_factory=dict)


class ModelArgsSection(Section):
    """Limits and options of the trained model."""

    max_lora_rank: int = Field(default=128, ge=1, le=4096)
    dtype: str | None = None
    gradient_checkpointing: bool | None = None


class RoleSection(Section):
    """One role of the engine and the devices it runs on."""

    strategy_args: StrategySection = StrategySection()
    model_args: ModelArgsSection = ModelArgsSection()
    device_mapping: list[int] | None = None
    """Global device numbers: a list, or a string such as ``0-3,5`` or ``list(range(0,8))``. None: the engine chooses."""
    num_gpus_per_worker: int = Field(default=1, ge=1)

    @field_validator("device_mapping", mode="before")
    @classmethod
    def _parse_devices(cls, value: object) -> object:
        return parse_devices(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_devices(self) -> Self:
        devices = self.device_mapping
        if devices is not None:
            if len(set(devices)) != len(devices) or any(d < 0 for d in devices):
                raise ValueError(f"device_mapping {devices} must hold distinct numbers from 0")
            if len(devices) % self.num_gpus_per_worker:
                raise ValueError(
                    f"device_mapping names {len(devices)} devices, which is no multiple of num_gpus_per_worker "
                    f"{self.num_gpus_per_worker}"
                )
        return self


class ModelSection(Section):
    """One more base model."""

    pretrain: str
    model_name: str | None = None
    aliases: list[str] = Field(default_factory=list)


class ClusterSection(Section):
    """Ray: which cluster, and how long its answers may take. Read only when a strategy needs Ray."""

    address: str | None = None
    """``host:port`` of a running Ray head, or ``auto``. None: this process starts a Ray of its own on this machine."""
    namespace: str = "tinker"
    base_port: int | None = Field(default=None, ge=1024, le=60000)
    """First of the ports of process groups and sampler replicas (see ``tinker-backend doctor``). None: free ones."""
    exchange_folder: Path | None = None
    """Where published adapters pass from trainer to sampler; all nodes must see it. None: memory of this machine."""
    call_timeout_seconds: float = Field(default=1800, gt=0)
    """Longest time that one remote call may take before its actor counts as hung."""
    start_timeout_seconds: float = Field(default=1800, gt=0)
    """Longest time for an actor to be placed and to load its model."""
    object_store_bytes: int | None = Field(default=None, ge=80 * 1024 * 1024)
    """Size of Ray's object store where this process starts Ray."""
    cpus: int | None = Field(default=None, ge=1)
    """CPUs that Ray counts where this process starts it. None: as many as the processes need."""
    temporary_folder: Path | None = None
    """Ray's session folder where this process starts it; the path must be short (UNIX sockets are made in it)."""


class EngineConfig(Section):
    """``engine.yaml``: base models, roles, strategies and budgets."""

    pretrain: str
    model_name: str | None = None
    aliases: list[str] = Field(default_factory=list)
    models: list[ModelSection] = Field(default_factory=list)
    model_download_type: Literal["HUGGINGFACE_HUB", "MODELSCOPE"] = "HUGGINGFACE_HUB"
    sequence_length: int = Field(default=4096, ge=8)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(default=None, ge=1)
    num_nodes: int = Field(default=1, ge=1)
    num_gpus_per_node: int | None = Field(default=None, ge=0)
    actor_train: RoleSection = RoleSection()
    actor_infer: RoleSection = RoleSection()
    reference: RoleSection | None = None
    cluster: ClusterSection = ClusterSection()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads the file; a ``pretrain`` that is an existing folder beside it becomes absolute. Raises ConfigError."""
        config = _load(cls, Path(path))
        base = Path(path).resolve().parent
        return config.model_copy(
            update={
                "pretrain": _folder(config.pretrain, base),
                "models": [m.model_copy(update={"pretrain": _folder(m.pretrain, base)}) for m in config.models],
            }
        )

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        check_engine(self)
        return self


def _folder(pretrain: str, base: Path) -> str:
    path = base / Path(pretrain).expanduser()
    return str(path) if path.is_dir() else pretrain


def parse_devices(text: str) -> list[int]:
    """Device numbers out of ``0-3,5``, ``[0, 1]`` or ``list(range(0,8))``. The text is parsed, never evaluated."""
    compact = re.sub(r"\s+", "", text)
    if match := re.fullmatch(r"(?:list\()?range\((\d+)(?:,(\d+))?(?:,([1-9]\d*))?\)\)?", compact):
        first, second, step = match.groups()
        start, stop = (0, int(first)) if second is None else (int(first), int(second))
        return list(range(start, min(stop, start + 1_000_000), int(step or 1)))
    compact = compact.removeprefix("[").removesuffix("]")
    devices: list[int] = []
    for part in filter(None, compact.split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ValueError(
                f"device_mapping {text!r}: {part!r} is no number or range; write 0-3,5 or list(range(0,8))"
            )
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or high - low > 1_000_000:
            raise ValueError(f"device_mapping {text!r}: the range {part!r} runs backwards or is too long")
        devices.extend(range(low, high + 1))
    return devices


# --- reading ---------------------------------------------------------------------------------------------------------

ConfigType = TypeVar("ConfigType", bound=Section)


class _Loader(yaml.SafeLoader):
    """YAML whose mappings hold each key once; by itself the last one would win silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                first = seen[key.value].start_mark.line + 1
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} stands twice in one mapping (first in line {first}); remove one",
                    problem_mark=key.start_mark,
                )
            seen[key.value] = key
        return super().construct_mapping(node, deep)


def _where(error: Exception) -> str:
    """What is wrong, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return str(error).splitlines()[0]


def _load(cls: type[ConfigType], path: Path) -> ConfigType:
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {_where(error)}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold a mapping at its top, not a {type(document).__name__}")
    try:
        return cls.model_validate(document)
    except ValidationError as error:
        lines = "\n".join(f"  {_describe(cls, document, dict(item))}" for item in error.errors())
        raise ConfigError(f"{path} cannot be used:\n{lines}") from error


def _describe(cls: type[BaseModel], document: dict[str, Any], item: dict[str, Any]) -> str:
    location: tuple[int | str, ...] = item["loc"]
    key = ".".join(str(part) for part in location) or "(the file)"
    if item["type"] == "extra_forbidden":
        known = _fields_at(cls, location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, 1, 0.5)
        fix = f"did you mean {near[0]!r}?" if near else f"known keys here: {', '.join(known)}"
        return f"{key}: unknown key; {fix}"
    if item["type"] == "missing":
        return f"{key}: missing; it must be given"
    message = str(item["msg"]).removeprefix("Value error, ")
    if not location:
        return message
    if item["type"] == "value_error" and isinstance(item["input"], dict):
        return f"{key}.{message}"  # a rule between the keys of a section; it names key and value itself
    if item["type"] == "model_type":
        message = "must be a mapping of keys and values"
    # A URL may hold a password.
    found = re.sub(r"://[^@/'\"]*@", "://***@", repr(item["input"]))
    return f"{key}: {message} (found {found})"


def _fields_at(cls: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The known keys of the section at ``location``."""
    current: type[BaseModel] = cls
    for part in location:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part)
        nested = _section_of(field.annotation) if field else None
        if nested is None:
            break
        current = nested
    return list(current.model_fields)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (nested := _section_of(argument)) is not None:
            return nested
    return None
