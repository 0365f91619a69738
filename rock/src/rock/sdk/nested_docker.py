"""The Docker daemon inside a sandbox, for jobs whose task environments are containers of it."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from rock.errors import JobError
from rock.sdk.sandbox import Sandbox

NESTED_DOCKER_SECONDS = 75.0
LOG = "/data/logs/dockerd.log"
# The daemon's containers get a place below the sandbox's own control group: they count against the sandbox's limits, and
# whoever removes the sandbox removes their groups too. With one unified hierarchy the processes here must first leave the
# top group, or nothing can be made below it.
_START = """
command -v dockerd >/dev/null || { echo "no dockerd in the sandbox's image: take one that has Docker"; exit 3; }
rm -f /var/run/docker.pid
group=$(sed -n 's/^[0-9]*:memory:\\(\\/.*\\)$/\\1/p' /proc/self/cgroup)
top=/sys/fs/cgroup
if [ -f $top/cgroup.controllers ] && [ -w $top/cgroup.subtree_control ]; then
  mkdir -p $top/sandbox
  for process in $(cat $top/cgroup.procs); do echo "$process" > $top/sandbox/cgroup.procs; done 2>/dev/null
  sed 's/\\([^ ]*\\)/+\\1/g' $top/cgroup.controllers > $top/cgroup.subtree_control
fi
if [ -n "$group" ] && [ "$group" != / ]; then exec dockerd --cgroup-parent="$group"; fi
exec dockerd
"""


async def start_nested_docker(sandbox: Sandbox, log: str = LOG) -> bool:
    """Starts a daemon unless one answers, and waits for it. True if it was started here.

    Raises:
        JobError: it ended instead; with its last words and what to set.
    """
    if (await sandbox.execute("docker info", timeout=30)).exit_code == 0:
        return False
    started = await sandbox.start_job(["/bin/sh", "-c", _START], output_file=log)
    while True:
        if (await sandbox.execute("docker info", timeout=30)).exit_code == 0:
            return True
        status = await sandbox.poll_job(started["job_id"], wait=0.5, offset=0)
        if not status["running"]:
            raise JobError(
                f"the Docker daemon in the sandbox ended with exit code {status['exit_code']}: "
                f"{status['output'][-1200:].strip()}. It needs runtime.type docker with runtime.privileged auto in admin.yaml",
                "docker",
            )
        await asyncio.sleep(0.1)


async def python_mounts(sandbox: Sandbox, python: str) -> list[dict[str, Any]]:
    """Read-only mounts that show a Python of the sandbox, with its packages, to a task's container at the same paths.

    Raises:
        JobError: it does not run, or lies among folders that a task has itself.
    """
    probe = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
    found = await sandbox.execute([python, "-c", probe], timeout=60)
    if found.exit_code != 0:
        raise JobError(
            f"environment.python {python} does not run in the sandbox: {found.stderr[-500:].strip()}", "docker"
        )
    named = {*json.loads(found.stdout), os.path.dirname(os.path.dirname(python)) if os.path.isabs(python) else "/"} - {
        "/"
    }
    folders = [one for one in sorted(named) if not any(one.startswith(f"{other}/") for other in named)]
    shared = [folder for folder in folders if folder in ("/", "/usr", "/usr/local")]
    if shared:
        raise JobError(
            f"environment.python {python} lies in {shared[0]}, which a task's image has itself; give the sandbox a Python in a "
            "folder of its own (python -m rock.runtime.own_python FOLDER), or an agent that is installed in the task's container",
            "docker",
        )
    return [{"type": "bind", "source": folder, "target": folder, "read_only": True} for folder in folders]
