"""A small task whose environment is built by the Docker daemon inside a sandbox."""

from __future__ import annotations

import textwrap
from pathlib import Path

from rock.sdk import Sandbox

FIX = "sed -i 's/a - b/a + b/' /testbed/sums.py"
FILES = {
    "instruction.md": "add(a, b) in /testbed/sums.py subtracts. Make it add.\n",
    "task.toml": """
        schema_version = "1.4"
        [verifier]
        timeout_sec = 60
        [agent]
        timeout_sec = 120
        [environment]
        build_timeout_sec = 120
        cpus = 1
        memory_mb = 512
    """,
    "environment/Dockerfile": """
        FROM task-base:local
        WORKDIR /testbed
        COPY sums.py /testbed/sums.py
        RUN python3 -c 'import sums; print(sums.add(2, 1))' > /built-here
    """,
    "environment/sums.py": "def add(a, b):\n    return a - b\n",
    "tests/test.sh": """
        #!/bin/bash
        cd /testbed
        grep -qx 1 /built-here || exit 1
        if python3 -c 'import sums; assert sums.add(2, 1) == 3'; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
    """,
    "solution/solve.sh": f"#!/bin/bash\n{FIX}\n",
}


def write_task(folder: Path) -> Path:
    """Writes the task's files and returns the folder."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
    return folder


async def start_inner_docker(sandbox: Sandbox) -> None:
    """Starts the sandbox's daemon and gives it the task's base image, which the sandbox has as /opt/base.tar."""
    from rock.sdk.nested_docker import start_nested_docker

    assert await start_nested_docker(sandbox) is True
    await sandbox.execute("docker import /opt/base.tar task-base:local", timeout=200, check=True)
