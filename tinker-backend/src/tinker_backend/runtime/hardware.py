"""What the machine offers: cores that are really there, a device, and the fastest sound dtype."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tinker_backend.runtime.roles import RuntimeFault

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt."""


def usable_cores() -> int:
    """Physical share of this process: its affinity, cut down to the CPU quota of its control group."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, min(cores, math.floor(quota + 0.5)) if quota is not None else cores)


def chosen_threads() -> int:
    """Threads of torch: ``OMP_NUM_THREADS`` where the user set it, else every usable core."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(int(asked), usable_cores()) if asked.isdecimal() and int(asked) > 0 else usable_cores()


def _cgroup_quota() -> float | None:
    """CPUs that the control group allows, None without a limit. Every level up to the root may have one."""
    limits: list[float] = []
    try:
        entries = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        if controllers == "":
            root, names = Path("/sys/fs/cgroup"), ["cpu.max"]
        elif "cpu" in controllers.split(","):
            root, names = Path("/sys/fs/cgroup/cpu"), ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        folder = root / path.lstrip("/")
        for level in (folder, *folder.parents):
            limit = _quota_at(level, names)
            if limit is not None:
                limits.append(limit)
            if level == root:
                break
    return min(limits) if limits else None


def _quota_at(folder: Path, names: list[str]) -> float | None:
    try:
        fields = " ".join((folder / name).read_text(encoding="ascii") for name in names).split()
    except OSError:
        return None
    if len(fields) < 2 or fields[0] == "max" or int(fields[0]) <= 0:
        return None
    return int(fields[0]) / int(fields[1])


def use_fast_float32() -> bool:
    """Lets float32 products run in oneDNN where that is exact float32; returns whether it does.

    torch gives float32 products to MKL, which is slow on some CPUs, unless lower precision is allowed inside. oneDNN only
    makes use of the permission where the CPU has matrix units for it; elsewhere it computes in float32, often twice as
    fast. Whether that is so here is measured, not assumed.
    """
    if torch.cpu._is_amx_tile_supported():
        return False
    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    products.fp32_precision = "bf16"
    generator = torch.Generator().manual_seed(0)
    exact = True
    for rows in (1, 24, 256):
        left, right = torch.randn(rows, 192, generator=generator), torch.randn(192, 320, generator=generator)
        wide = left.double() @ right.double()
        exact = exact and bool(((left @ right) - wide).abs().max() < 1e-5 * wide.abs().max())
    if not exact:
        products.fp32_precision = "ieee"
    return exact


class SmallProducts:
    """Within it float32 products go to MKL again, which is many times faster for those of a few rows. May be nested."""

    def __init__(self) -> None:
        self._depth = 0
        self._before = ""

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
            self._before = products.fp32_precision
            products.fp32_precision = "ieee"

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
            products.fp32_precision = self._before


_SMALL_PRODUCTS = SmallProducts()


def small_products() -> SmallProducts:
    """A block whose float32 products have few rows. For the one thread that computes."""
    return _SMALL_PRODUCTS


def keep_freed_memory() -> bool:
    """Asks glibc to keep up to 1 GiB of freed memory for the next pass; returns whether it does.

    Otherwise every pass gets its activations from the kernel anew, page by page: 7 % of a training step of SmolLM2.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 32 << 20) and mallopt(_M_TRIM_THRESHOLD, 1 << 30))


def give_back_freed_memory() -> Iterator[None]:
    """Gives what ``keep_freed_memory`` kept back to the system, in one step of half a second (some gigabytes)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    yield


def available_memory() -> int | None:
    """Bytes that can still be had without swapping, within the limit of the control group; None when nobody knows."""
    known: list[int] = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                known.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        if limit.isdecimal():
            used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
            known.append(max(0, int(limit) - used))
    except (OSError, ValueError):
        pass
    return min(known) if known else None


def pick_device(name: str) -> torch.device:
    """``auto``: CUDA when a GPU is there, else the CPU. Raises RuntimeFault (user)."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise RuntimeFault("device: cuda is asked for, but torch finds no GPU; use auto or cpu", "user")
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """``auto``: bfloat16 base weights on a GPU or where the CPU multiplies them in hardware, else float32."""
    named = {"float32": torch.float32, "fp32": torch.float32, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16}
    if name in named:
        return named[name]
    if name != "auto":
        raise RuntimeFault(f"dtype: {name!r} is unknown; use auto, bfloat16 or float32", "user")
    if device.type == "cuda":
        return torch.bfloat16
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32
