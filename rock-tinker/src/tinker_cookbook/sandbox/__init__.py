"""Sandboxes: the interface, ROCK behind it, and code services."""

from enum import StrEnum

from tinker_cookbook.sandbox.code_service import SandboxCodeRunner
from tinker_cookbook.sandbox.rock_sandbox import RockSandbox
from tinker_cookbook.sandbox.sandbox_interface import (
    SandboxInterface,
    SandboxResource,
    SandboxResult,
    SandboxTerminatedError,
)
from tinker_cookbook.sandbox.sandboxfusion import SandboxFusionClient


class SandboxBackend(StrEnum):
    """Where programs run: a ``/run_code`` service, or a ROCK sandbox. ``modal`` is refused where it is used."""

    SANDBOXFUSION = "sandboxfusion"
    MODAL = "modal"
    ROCK = "rock"


__all__ = [
    "RockSandbox",
    "SandboxBackend",
    "SandboxCodeRunner",
    "SandboxFusionClient",
    "SandboxInterface",
    "SandboxResource",
    "SandboxResult",
    "SandboxTerminatedError",
]
