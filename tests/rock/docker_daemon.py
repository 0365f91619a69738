"""A Docker daemon of the tests' own, and the images that they need, made from Debian packages."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from debian_archive import BASE_PACKAGES, NESTING_PACKAGES, debian_archive

BASE_IMAGE = "rock-test:base"
NESTING_IMAGE = "rock-test:nesting"
PACKAGES = {BASE_IMAGE: BASE_PACKAGES, NESTING_IMAGE: NESTING_PACKAGES}
_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_START_SECONDS = 60


class NoDaemon(RuntimeError):
    """No daemon can be started here; the message says why."""


def ping(url: str) -> str:
    """Why no daemon answers at `url`; "" if one does."""
    import docker

    try:
        docker.DockerClient(base_url=url, timeout=5).ping()
        return ""
    except Exception as error:  # the package raises many kinds
        return str(error)


def provide_image(url: str, image: str) -> None:
    """Imports one of the test images unless it is there.

    Raises:
        ArchiveMissing: it cannot be made here.
    """
    import docker

    client = docker.DockerClient(base_url=url, timeout=300)
    try:
        client.images.get(image)
    except docker.errors.ImageNotFound:
        client.api.import_image_from_file(str(debian_archive(PACKAGES[image])), *image.split(":"))
    finally:
        client.close()


def packet_filter(tool: str) -> str:
    """The rules as they are, for TOOL-restore. Tables that nobody has used are named as empty, so that restoring empties them."""
    rules = subprocess.run([f"{tool}-save"], capture_output=True, text=True).stdout
    chains = {"filter": ("INPUT", "FORWARD", "OUTPUT"), "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING")}
    for table, names in chains.items():
        if f"*{table}\n" not in rules:
            rules += "\n".join([f"*{table}", *(f":{name} ACCEPT" for name in names), "COMMIT", ""])
    return rules


def _container_groups() -> list[Path]:
    """Control groups below those that Docker makes, the deepest first."""
    found = [path for path in Path("/sys/fs/cgroup").glob("*/docker/**/") if path.name != "docker"]
    return sorted(found, key=lambda path: -len(path.parts))


class DockerDaemon:
    """dockerd on a socket of its own. `stop` leaves the machine as it was: processes, mounts, bridge, packet filter, files.

    Args:
        parent: a folder on a real disk.
    """

    def __init__(self, parent: str) -> None:
        if shutil.which("dockerd") is None or os.geteuid() != 0:
            raise NoDaemon("no Docker daemon runs, and none can be started here (no dockerd, or not root)")
        self.folder = Path(tempfile.mkdtemp(prefix="rock-dockerd-", dir=parent))
        self.url = f"unix://{self.folder}/docker.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self._had_bridge = Path("/sys/class/net/docker0").exists()
        self._filter = {tool: packet_filter(tool) for tool in ("iptables", "ip6tables") if shutil.which(f"{tool}-save")}
        self._forward = _FORWARD.read_text()
        self._groups = set(_container_groups())

    def start(self) -> None:
        """Returns when it answers.

        Raises:
            NoDaemon: it does not; with the end of its log.
        """
        folders = ["--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"]
        command = ["dockerd", *folders, "-H", self.url, "--pidfile", f"{self.folder}/pid"]
        # A killed predecessor leaves both; the process ids in them may be in use again.
        for stale in ("pid", "exec/containerd/containerd.pid"):
            (self.folder / stale).unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + _START_SECONDS
        while problem := ping(self.url):
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                text = (self.folder / "log").read_text(errors="replace")[-1000:]
                raise NoDaemon(f"dockerd does not start here: {problem}: {text}")
            time.sleep(0.2)

    def kill(self) -> None:
        """kill -9. Its containers run on, as after a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def crash(self) -> None:
        """As when the machine loses power: daemon, containers and /run are gone at once, the disk stays."""
        assert self.process is not None
        pids = [self.process.pid, *self._left()]
        for shim in self._left():  # a shim's children are the main processes of containers
            for task in Path(f"/proc/{shim}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    pids += [int(pid) for pid in task.read_text().split()]
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        self.process.wait(30)
        time.sleep(0.5)
        self._unmount()
        shutil.rmtree(self.folder / "exec", ignore_errors=True)

    def stop(self) -> None:
        """Ends it with all its containers and clears up."""
        if self.process is not None and self.process.poll() is None:
            self._remove_containers()
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(40)
            if self.process.poll() is None:
                self.process.kill()
        for pid in self._left():
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        time.sleep(0.2)
        self._unmount()
        if not self._had_bridge:
            subprocess.run(["ip", "link", "del", "docker0"], capture_output=True)
        for tool, rules in self._filter.items():
            subprocess.run([f"{tool}-restore"], input=rules.encode(), capture_output=True)
        _FORWARD.write_text(self._forward)
        for group in _container_groups():  # of containers whose shim was killed; one with processes cannot be removed
            if group not in self._groups:
                with contextlib.suppress(OSError):
                    group.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _unmount(self) -> None:
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in sorted((one for one in mounts if one.startswith(f"{self.folder}/")), reverse=True):
            subprocess.run(["umount", "-l", mount], capture_output=True)

    def _remove_containers(self) -> None:
        import docker

        with contextlib.suppress(Exception):
            client: Any = docker.DockerClient(base_url=self.url, timeout=60)
            for container in client.containers.list(all=True):
                container.remove(force=True, v=True)

    def _left(self) -> list[int]:
        """Processes (containerd and its shims) that name this daemon's folder on their command line."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{self.folder}/".encode() in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
        return found
