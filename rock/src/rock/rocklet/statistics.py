"""Figures of a sandbox or host, read from /proc and the control groups."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path


def statistics() -> dict[str, float]:
    """cpu, mem, disk in percent; net in bytes since boot of the network namespace; load and process count."""
    memory = {line.split(":")[0]: int(line.split()[1]) for line in _lines("/proc/meminfo") if line.split()[1].isdigit()}
    total, free = memory.get("MemTotal", 1), memory.get("MemAvailable", 0)
    disk = shutil.disk_usage("/")
    received = sent = 0
    for line in _lines("/proc/net/dev")[2:]:
        name, _, numbers = line.partition(":")
        if name.strip() != "lo":
            fields = numbers.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return {
        "cpu": _cpu_percent(),
        "mem": round(100 * (1 - free / total), 2),
        "disk": round(100 * disk.used / max(1, disk.total), 2),
        "net": float(received + sent),
        "processes": float(sum(entry.isdigit() for entry in os.listdir("/proc"))),
        "time": time.time(),
    }


_last_cpu: list[float] = []


def _cpu_percent() -> float:
    """Busy share of the machine's processors since the last call."""
    with contextlib.suppress(IndexError, ValueError):
        ticks = [float(word) for word in _lines("/proc/stat")[0].split()[1:9]]
        now = [sum(ticks) - ticks[3] - ticks[4], sum(ticks)]
        before = _last_cpu or [0.0, 0.0]
        _last_cpu[:] = now
        return round(100 * (now[0] - before[0]) / max(1.0, now[1] - before[1]), 2)
    return 0.0


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
