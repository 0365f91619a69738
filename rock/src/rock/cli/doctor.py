"""`rock doctor`: tries what sandboxes need and says what is missing."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click

from rock.errors import RockError


@click.command()
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="folder on the disk that sandboxes shall use; default: a temporary one",
)
def doctor(state: Path | None) -> None:
    """Say what this machine can do for sandboxes. Exit code 0 if local sandboxes work."""
    click.echo(
        f"python {platform.python_version()}, kernel {platform.release()}, user id {os.geteuid()}, {os.cpu_count()} cores"
    )
    works = asyncio.run(_local(state))
    _docker()
    sys.exit(0 if works else 1)


async def _local(state: Path | None) -> bool:
    from rock.runtime.local import Limits, LocalRoot, NamespaceSandbox, SandboxSpec

    folder = Path(tempfile.mkdtemp(prefix="rock-doctor-", dir=state or "/var/tmp"))
    try:
        limits = Limits(memory_bytes=256 << 20, cpus=1, pids=64)
        sandbox = NamespaceSandbox(LocalRoot(folder), SandboxSpec("doctor", limits=limits))
        start = time.monotonic()
        try:
            await sandbox.start()
        except RockError as error:
            click.echo(f"local sandboxes: no: {error}")
            click.echo(
                "  needed: Linux 5.12 or newer, user namespaces (sysctl user.max_user_namespaces), overlayfs on a disk"
            )
            return False
        took = time.monotonic() - start
        try:
            seen = await sandbox.exec("id -u; ls /root /home; cat /proc/net/dev | tail -n +3 | cut -d: -f1", timeout=20)
        finally:
            await sandbox.stop()
        click.echo(f"local sandboxes: yes (ready in {took * 1000:.0f} ms, command exit code {seen.exit_code})")
        for note in sandbox.notes:
            click.echo(f"  note: {note}")
        if sandbox.limits_missing:
            click.echo(
                f"  note: no control group for {', '.join(sandbox.limits_missing)}: limits are set per process (rlimit, affinity)"
            )
        return seen.exit_code == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _docker() -> None:
    try:
        import docker
    except ImportError:
        click.echo("docker: no: the Python package is not installed (pip install 'rl-rock[docker]')")
        return
    try:
        client = docker.from_env(timeout=5)
        version = client.version()
    except Exception as error:  # the package raises many kinds
        click.echo(f"docker: no daemon answers: {str(error).splitlines()[0][:200]}")
        return
    click.echo(f"docker: yes (server {version.get('Version')})")
