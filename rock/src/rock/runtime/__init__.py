"""How a sandbox is made, limited and destroyed: `local` (Linux namespaces) and `docker`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rock.config import RockConfig
    from rock.runtime.base import Runtime


def make_runtime(config: RockConfig) -> Runtime:
    """The runtime that the configuration names. Imports nothing heavy before it is called."""
    if config.runtime.type == "docker":
        from rock.runtime.docker import DockerRuntime

        return DockerRuntime(config.runtime, config.state_folder / "docker")
    from rock.runtime.local.runtime import LocalRuntime

    return LocalRuntime(config.runtime, config.state_folder / "local")
