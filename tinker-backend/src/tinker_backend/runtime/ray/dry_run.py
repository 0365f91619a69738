"""What a cluster configuration would do: placement, ports and versions, told without Ray and without a GPU."""

from __future__ import annotations

import json
import subprocess

from tinker_backend.config import EngineConfig
from tinker_backend.engine_rules import Finding, is_cluster
from tinker_backend.runtime.ray.placement import place, placement_problems
from tinker_backend.runtime.ray.versions import problems

_VERSIONS_SECONDS = 60


def dry_run(config: EngineConfig) -> list[Finding]:
    """Findings about a checked configuration: seats, ports, and what keeps them from being reached."""
    if not is_cluster(config):
        return [(True, "embedded engine: trainer and sampler in one process, no Ray")]
    found: list[Finding] = [(True, line) for line in place(config).lines()]
    return found + [(False, text) for text in placement_problems(config)]


def version_findings(config: EngineConfig, python: str) -> list[Finding]:
    """Whether the runtime's interpreter has the packages in supported versions."""
    command = [python, "-m", "tinker_backend.runtime.ray.versions"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_VERSIONS_SECONDS)
        versions = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError) as error:
        return [(False, f"runtime.python {python} cannot tell its versions: {error}")]
    except json.JSONDecodeError:
        said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        return [
            (False, f"runtime.python {python} cannot tell its versions: {said}; install tinker-backend[vllm] there")
        ]
    wrong = problems(config, versions)
    if wrong:
        return [(False, text) for text in wrong]
    shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return [(True, f"versions of the runtime's Python: {shown}")]
