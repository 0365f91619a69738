"""What a local sandbox is made of: plain dataclasses that travel as JSON to the keeper process."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Network = Literal["none", "host"]


@dataclass(frozen=True)
class Bind:
    """A folder or file of the outside that is visible inside at `target`. Read-only unless `writable`."""

    source: str
    target: str
    writable: bool = False

    @staticmethod
    def of(path: str | Path, writable: bool = False) -> Bind:
        """The same path outside and inside."""
        return Bind(str(path), str(path), writable)


@dataclass(frozen=True)
class Limits:
    """Limits of the whole sandbox. None = no limit of ours.

    With writable cgroups (v1 or v2) they hold for all processes together. Without them (not root, or a sandbox in
    a sandbox) memory is limited per process (RLIMIT_DATA), pids per sandbox (RLIMIT_NPROC), cpus by affinity.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = 4096
    time_seconds: float | None = None
    open_files: int | None = None


@dataclass(frozen=True)
class SandboxSpec:
    """All that the keeper needs to build one sandbox.

    Args:
        base: "host" (system folders of this machine, copy on write, without its secrets) or "scratch" (layers only).
        layers: folders that are laid over the base, topmost first.
        trees: further folders of this machine that appear at the same path, copy on write (a Python installation, say).
        binds: declared folders and files, read-only or writable.
        network: "none" (a loopback of its own) or "host" (shares the network namespace of the owner).
        etc: names below /etc to take from this machine in addition to the harmless ones (e.g. "pip.conf").
        env: environment of every command.
        workdir: where commands run by default.
        scratch: path inside of a writable folder that is no overlay, where sandboxes inside this sandbox keep their files
            (`LocalRoot(scratch)`); not part of snapshots; "" = none.
        keep: leave the written files in place after the stop (the owner takes or removes them).
    """

    sandbox_id: str
    base: Literal["host", "scratch"] = "host"
    layers: tuple[str, ...] = ()
    trees: tuple[str, ...] = ()
    binds: tuple[Bind, ...] = ()
    network: Network = "none"
    etc: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    hostname: str = ""
    limits: Limits = Limits()
    scratch: str = "/var/lib/rock"
    keep: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> SandboxSpec:
        data = dict(data)
        data["binds"] = tuple(Bind(**bind) for bind in data["binds"])
        data["limits"] = Limits(**data["limits"])
        for name in ("layers", "trees", "etc"):
            data[name] = tuple(data[name])
        return SandboxSpec(**data)


@dataclass(frozen=True)
class ExecResult:
    """Outcome of one command. `exit_code` is 128 + n after signal n; 124 after a time-out."""

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool = False
    truncated: bool = False
