"""Sandboxes from Linux namespaces and overlayfs: nothing to install, no daemon, no image to pull."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rock.runtime.local.root import LocalRoot
    from rock.runtime.local.sandbox import NamespaceSandbox
    from rock.runtime.local.spec import Bind, ExecResult, Limits, SandboxSpec

# Keeper and enter helper are modules of this package and start for every sandbox and command: what they do not need
# (asyncio above all) must not be imported with them.
_HOMES = {
    "Bind": "spec",
    "ExecResult": "spec",
    "Limits": "spec",
    "SandboxSpec": "spec",
    "LocalRoot": "root",
    "NamespaceSandbox": "sandbox",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"rock.runtime.local.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'rock.runtime.local' has no attribute {name!r}")


__all__ = ["Bind", "ExecResult", "Limits", "LocalRoot", "NamespaceSandbox", "SandboxSpec"]
