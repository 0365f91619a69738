"""Resource limits of one sandbox through the machine's control groups, version 1 or 2, where we may write them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from rock.runtime.local.spec import Limits

_CPU_PERIOD_US = 100_000
_V1_CONTROLLERS = ("memory", "cpu", "pids", "cpuacct")


class SandboxCgroup:
    """Groups below our own ones, one for each controller (v1) or one in all (v2). Empty where none is writable."""

    def __init__(self, sandbox_id: str) -> None:
        self.name = f"rock-{sandbox_id}"
        self.folders: dict[str, Path] = {}

    def create(self, limits: Limits) -> list[str]:
        """Makes the groups and sets the limits. Returns the limits that could not be set ("memory", "cpu", "pids")."""
        for controller, parent in own_groups():
            folder = parent / self.name
            try:
                folder.mkdir(exist_ok=True)
            except OSError:
                continue
            self.folders[controller] = folder
        wanted = {
            "memory": limits.memory_bytes is not None,
            "cpu": limits.cpus is not None,
            "pids": limits.pids is not None,
        }
        return [kind for kind, asked in wanted.items() if asked and not self._limit(kind, limits)]

    def _limit(self, kind: str, limits: Limits) -> bool:
        writes: list[tuple[str, str]]
        unified = self.folders.get("unified")
        folder = self.folders.get(kind) or unified
        if folder is None:
            return False
        second_version = folder is unified
        if kind == "memory":
            text = str(limits.memory_bytes)
            writes = (
                [("memory.max", text), ("memory.swap.max", "0")]
                if second_version
                else [("memory.limit_in_bytes", text), ("memory.memsw.limit_in_bytes", text)]
            )
        elif kind == "cpu":
            quota = int((limits.cpus or 1) * _CPU_PERIOD_US)
            writes = (
                [("cpu.max", f"{quota} {_CPU_PERIOD_US}")]
                if second_version
                else [("cpu.cfs_period_us", str(_CPU_PERIOD_US)), ("cpu.cfs_quota_us", str(quota))]
            )
        else:
            writes = [("pids.max", str(limits.pids))]
        try:
            (folder / writes[0][0]).write_text(writes[0][1])
        except OSError:
            return False
        for name, text in writes[1:]:
            with contextlib.suppress(OSError):  # swap accounting may be off; the main limit stands
                (folder / name).write_text(text)
        return True

    def add(self, pid: int) -> None:
        """Moves a process in; its later children follow."""
        for folder in self.folders.values():
            (folder / "cgroup.procs").write_text(str(pid))

    def remove(self, deadline_seconds: float = 5.0) -> None:
        """Removes the groups; processes that are just dying get `deadline_seconds`."""
        deadline = time.monotonic() + deadline_seconds
        for folder in self.folders.values():
            while folder.is_dir():
                try:
                    _remove_below(folder)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.01)


def _remove_below(folder: Path) -> None:
    for child in [entry for entry in folder.iterdir() if entry.is_dir()]:
        _remove_below(child)
    folder.rmdir()


def own_groups() -> Iterator[tuple[str, Path]]:
    """(controller or "unified", folder of our own group) for each hierarchy that offers a limit and is writable."""
    mounts = _cgroup_mounts()
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount = mounts.get("unified")
            if mount is None:
                continue
            folder = mount / path.lstrip("/")
            offered = " ".join(_lines(str(folder / "cgroup.subtree_control"))).split()
            if "memory" in offered and os.access(folder, os.W_OK):
                yield "unified", folder
            continue
        for controller in controllers.split(","):
            mount = mounts.get(controller)
            if controller not in _V1_CONTROLLERS or mount is None:
                continue
            folder = mount / path.lstrip("/")
            if os.access(folder, os.W_OK):
                yield controller, folder


def _cgroup_mounts() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        target = before.split(" ")[4]
        if kind == "cgroup2":
            found["unified"] = Path(target)
        elif kind == "cgroup":
            for controller in options.split(","):
                if controller in _V1_CONTROLLERS:
                    found[controller] = Path(target)
    return found


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def sweep(alive: set[str]) -> None:
    """Removes groups of sandboxes that no longer exist.

    Args:
        alive: group names that must stay.
    """
    for _, parent in own_groups():
        with contextlib.suppress(OSError):
            for folder in parent.glob("rock-*"):
                if folder.name not in alive and not _lines(str(folder / "cgroup.procs")):
                    with contextlib.suppress(OSError):
                        _remove_below(folder)
