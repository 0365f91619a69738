"""Root file systems from Debian packages, kept as archives in the cache of the tests: no image registry is needed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

SUITE = "bookworm"
BASE_PACKAGES = ("procps", "python3")
# What the sandbox of a Harbor job needs to run Docker itself.
NESTING_PACKAGES = ("ca-certificates", "docker.io", "git", "iproute2", "iptables", *BASE_PACKAGES)
_SECONDS = 900


class ArchiveMissing(RuntimeError):
    """The archive cannot be made here; the message says why."""


def archive_cache() -> Path:
    """Folder of archives, shared by all runs on this machine."""
    folder = Path(os.environ.get("TINKER_TEST_CACHE") or Path.home() / ".cache" / "tinker-tests") / "debian"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def debian_archive(packages: tuple[str, ...]) -> Path:
    """A tar file of a minimal Debian with `packages`; made on first use.

    Raises:
        ArchiveMissing: no debootstrap, not root, no mirror, or the installation failed.
    """
    folder = archive_cache()
    name = hashlib.sha256(" ".join((SUITE, *packages)).encode()).hexdigest()[:12]
    archive = folder / f"{SUITE}-{name}.tar"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_file():
            return archive
        if shutil.which("debootstrap") is None or os.geteuid() != 0:
            raise ArchiveMissing("a Debian base image needs debootstrap (apt-get install debootstrap) and root")
        debs = folder / "debs"
        debs.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as scratch:
            root = f"{scratch}/root"
            words = ["debootstrap", "--variant=minbase", f"--cache-dir={debs}", f"--include={','.join(packages)}"]
            made = subprocess.run(
                [*words, SUITE, root, _mirror()], capture_output=True, text=True, timeout=_SECONDS, check=False
            )
            if made.returncode != 0:
                raise ArchiveMissing(f"debootstrap failed: {(made.stdout + made.stderr)[-600:]}")
            subprocess.run(["tar", "-C", root, "-cf", f"{scratch}/tar", "--exclude=./var/cache/apt/*", "."], check=True)
            os.replace(f"{scratch}/tar", archive)
    return archive


def _mirror() -> str:
    for source in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        if source.is_file() and (found := re.findall(r"https?://\S+/debian/?(?=\s|$)", source.read_text())):
            return str(found[0])
    raise ArchiveMissing("no Debian mirror in /etc/apt/sources.list or /etc/apt/sources.list.d")
