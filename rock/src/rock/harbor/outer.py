"""What the outer sandbox of a Harbor job must see of this machine, as entries for ``runtime.binds`` of admin.yaml."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import rock
from rock.runtime.own_python import is_shared

HARBOR_TARGET = "/opt/harbor"
ROCK_TARGET = "/opt/rock"
STORE_TARGET = "/opt/task-layers"


class HarborPythonError(RuntimeError):
    """The Python for Harbor jobs is missing or lacks a package."""


def outer_binds(harbor_python: str | Path, store: str | Path | None = None) -> list[dict[str, str]]:
    """Read-only binds: the environment with harbor and mini-swe-agent at ``/opt/harbor``, the Python that it is made from at its
    own path, this package at ``/opt/rock``, and prebuilt task layers at ``/opt/task-layers``.

    Args:
        harbor_python: ``bin/python`` of that environment.
        store: folder of ``python -m rock.harbor.tasks prebuild``.

    Raises:
        HarborPythonError: it does not run, or harbor, mini-swe-agent, starlette or uvicorn is missing there.
    """
    # Importing our modules also leaves their bytecode for this Python, where the folder can be written.
    modules = "minisweagent.agents.default, rock.harbor.job_runner, rock.harbor.local_environment, rock.harbor.agents"
    modules += ", rock.model_service.server, rock.model_service.cli, uvicorn"
    probe = f"import sys, json, {modules}; print(json.dumps([sys.prefix, sys.base_prefix]))"
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "MSWEA_SILENT_STARTUP": "1", "HARBOR_TELEMETRY": "off"}
    try:
        with tempfile.TemporaryDirectory() as alone:
            # Only this package, as in the sandbox: what is installed beside it is meant for another Python.
            (Path(alone) / "rock").symlink_to(Path(rock.__file__).resolve().parent)
            done = subprocess.run(
                [str(harbor_python), "-c", probe],
                capture_output=True,
                text=True,
                timeout=120,
                env={**environment, "PYTHONPATH": alone},
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise HarborPythonError(f"{harbor_python} does not run: {error}") from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise HarborPythonError(
            f"{harbor_python} lacks what Harbor jobs need ({said}); install harbor and mini-swe-agent there"
        )

    prefix, base = json.loads(done.stdout.strip().splitlines()[-1])
    binds = [{"source": prefix, "target": HARBOR_TARGET}]
    # Sandboxes have a /usr of their own, which must stay as it is; a local one shows this machine's, copy on write.
    if not is_shared(base):
        binds.append({"source": base, "target": base})
    # The package alone: the folder around it may be a whole site-packages.
    binds.append({"source": str(Path(rock.__file__).parent), "target": f"{ROCK_TARGET}/rock"})
    if store is not None:
        binds.append({"source": str(Path(store).absolute()), "target": STORE_TARGET})
    return binds
