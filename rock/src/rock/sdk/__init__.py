"""SDK of ROCK: sandboxes, jobs in sandboxes, and the ModelService of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rock.sdk.config import SandboxConfig, SandboxGroupConfig
from rock.sdk.group import SandboxGroup
from rock.sdk.responses import CommandResponse, FileResult, IsAlive, Observation, ReadResult, SandboxStatus
from rock.sdk.sandbox import Sandbox

if TYPE_CHECKING:
    from rock.sdk.job import BashJobConfig, HarborJobConfig, HarborTrialResult, Job, JobResult
    from rock.sdk.model_service import ModelRequest, ModelServiceClient, SessionEnd

_LAZY = {
    "Job": "job", "HarborJobConfig": "job", "BashJobConfig": "job", "JobResult": "job", "HarborTrialResult": "job",
    "ModelServiceClient": "model_service", "ModelRequest": "model_service", "SessionEnd": "model_service",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"rock.sdk.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'rock.sdk' has no attribute {name!r}")


__all__ = [
    "BashJobConfig",
    "CommandResponse",
    "FileResult",
    "HarborJobConfig",
    "HarborTrialResult",
    "IsAlive",
    "Job",
    "JobResult",
    "ModelRequest",
    "ModelServiceClient",
    "Observation",
    "ReadResult",
    "Sandbox",
    "SandboxConfig",
    "SandboxGroup",
    "SandboxGroupConfig",
    "SandboxStatus",
    "SessionEnd",
]
