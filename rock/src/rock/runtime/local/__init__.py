"""Sandboxes from Linux namespaces and overlayfs: nothing to install, no daemon, no image to pull."""

from rock.runtime.local.root import LocalRoot
from rock.runtime.local.sandbox import NamespaceSandbox
from rock.runtime.local.spec import Bind, ExecResult, Limits, SandboxSpec

__all__ = ["Bind", "ExecResult", "Limits", "LocalRoot", "NamespaceSandbox", "SandboxSpec"]
