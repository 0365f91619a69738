"""The Docker runtime: one container per sandbox, its rocklet on a UNIX socket in a mounted folder.

No port is published: the worker reaches the rocklet through the file system, with any network or none. A container
ends with its worker: the worker touches a heartbeat file, and the rocklet, its main process, ends without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import shlex
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import httpx

from rock.config import RuntimeConfig
from rock.errors import ConfigError, RockError, SandboxStartError
from rock.runtime.base import SandboxRequest, StartProgress
from rock.runtime.docker_injection import Injection, prepare_injection

_LOG = logging.getLogger("rock.docker")
_LABEL = "rock.worker"
# An image that has a rocklet names its command here, so that it runs whatever C library this machine has.
ROCKLET_LABEL = "rock.rocklet"
_RUN = "/run/rock"
_WATCH_SECONDS, _BEAT_SECONDS, _PATIENCE_SECONDS = 1.0, 5.0, 45.0
_API_SECONDS = 120
# What the rocklet itself holds: a sandbox's memory is what its commands may have.
_ROCKLET_BYTES = 64 << 20
# What a container may do where the daemon cannot give --privileged but Docker shall run inside: measured, not guessed.
ALMOST_PRIVILEGED: dict[str, Any] = {
    "CapAdd": ["ALL"],
    "CapDrop": ["SYS_RESOURCE"],
    "SecurityOpt": ["seccomp=unconfined"],
    "MaskedPaths": [],
    "ReadonlyPaths": [],
}


class DockerSandbox:
    """A container whose rocklet answers on `socket_path`."""

    def __init__(self, runtime: DockerRuntime, sandbox_id: str, image: str, container: Any) -> None:
        self.runtime, self.sandbox_id, self.image, self.container = runtime, sandbox_id, image, container
        self._end_reason: str | None = None

    @property
    def alive(self) -> bool:
        return self._end_reason is None

    @property
    def end_reason(self) -> str | None:
        return self._end_reason

    def ended(self, reason: str) -> None:
        self._end_reason = self._end_reason or reason

    @property
    def socket_path(self) -> str:
        # Through the descriptor of the folder: the address of a UNIX socket may not be longer than 107 bytes.
        return f"/proc/self/fd/{self.runtime.sockets_fd}/{self.sandbox_id}"

    async def wait_ready(self, seconds: float) -> None:
        """Waits for the rocklet, and takes its socket out of the folder that the container sees.

        Raises:
            SandboxStartError: the container ended, or `seconds` are over; with its last output.
        """
        end = time.monotonic() + seconds
        pause = 0.02
        while not await self._answers():
            await asyncio.to_thread(self.container.reload)
            if self.container.status not in ("created", "running") or time.monotonic() > end:
                logs = await asyncio.to_thread(self.container.logs, tail=20)
                text = logs.decode(errors="replace").strip()[-1500:]
                raise SandboxStartError(
                    f"the rocklet did not answer (container is {self.container.status}): {text or 'no output'}. "
                    "The image needs a C library not older than this machine's, or a rocklet of its own "
                    f"(label {ROCKLET_LABEL} of the image, or runtime.rocklet_command)"
                )
            await asyncio.sleep(pause)
            pause = min(0.3, pause * 1.5)

    async def _answers(self) -> bool:
        if os.path.lexists(self.socket_path):
            return await _is_alive(self.socket_path)
        # What lies in the mounted folder is the container's to replace, by a link to another sandbox's socket, say.
        socket = self.runtime.run_folder(self.sandbox_id) / "rocklet.sock"
        try:
            handle = os.open(socket, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            if not stat.S_ISSOCK(os.fstat(handle).st_mode) or not await _is_alive(f"/proc/self/fd/{handle}"):
                return False
            os.rename(socket, self.socket_path)
            if os.path.samestat(os.fstat(handle), os.lstat(self.socket_path)):
                return True
        finally:
            os.close(handle)
        os.unlink(self.socket_path)
        raise SandboxStartError("the image replaced the socket of the rocklet", self.sandbox_id)

    async def revive(self) -> bool:
        if not self.alive:
            return False
        try:  # the container's init starts it again by itself
            await self.wait_ready(10)
        except SandboxStartError as error:
            self.ended(str(error))
        return self.alive

    async def commit(self, tag: str) -> dict[str, Any]:
        name, _, version = tag.partition(":")
        image = await asyncio.to_thread(self.container.commit, repository=name, tag=version or "latest")
        return {"image": tag, "layer": image.id}

    async def stop(self) -> None:
        """Removes the container. While the daemon is away, the container ends by itself, as its heartbeat goes, and is removed
        later."""
        self.ended("stopped by its owner")
        try:
            await asyncio.to_thread(self.runtime.remove, self.container)
        except (self.runtime.errors.DockerException, OSError) as error:
            _LOG.warning("sandbox %s: its container is removed later: %s", self.sandbox_id, error)
            self.runtime.orphans.add(self.container.id)
        await asyncio.to_thread(shutil.rmtree, self.runtime.run_folder(self.sandbox_id), True)
        with contextlib.suppress(OSError):
            os.unlink(self.socket_path)
        self.runtime.running.pop(self.sandbox_id, None)


async def _is_alive(uds: str) -> bool:
    transport = httpx.AsyncHTTPTransport(uds=uds, verify=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://rocklet", timeout=10) as client:
        with contextlib.suppress(httpx.HTTPError):
            return (await client.get("/is_alive")).status_code == 200
    return False


class DockerRuntime:
    """Sandboxes as containers of a Docker daemon on this machine."""

    name = "docker"

    def __init__(self, config: RuntimeConfig, folder: Path) -> None:
        try:
            import docker
        except ImportError as error:
            raise ConfigError("runtime.type docker needs the package docker: pip install 'rl-rock[docker]'") from error
        self.errors = docker.errors
        self.config = config
        self.folder = folder.absolute()
        for name in ("run", "sockets"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.sockets_fd = os.open(self.folder / "sockets", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.label = hashlib.sha256(str(self.folder).encode()).hexdigest()[:16]
        self.running: dict[str, DockerSandbox] = {}
        self.orphans: set[str] = set()
        url = config.docker_url or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
        try:
            self.client = docker.DockerClient(base_url=url, timeout=_API_SECONDS, max_pool_size=64)
            self.client.ping()
        except (docker.errors.DockerException, OSError) as error:
            raise ConfigError(
                f"no Docker daemon answers at {url}: start one, set runtime.docker_url, or use runtime.type local ({error})"
            ) from error
        self._injection: Injection | None = None
        self._privileged = config.privileged == "yes"
        self._almost = False
        self._loops: list[asyncio.Task[None]] = []

    def run_folder(self, sandbox_id: str) -> Path:
        return self.folder / "run" / sandbox_id

    async def open(self) -> None:
        await asyncio.to_thread(self._sweep)
        if self.config.rocklet_command is None:
            self._injection = await asyncio.to_thread(prepare_injection, self.folder)
        if self.config.privileged == "auto":
            self._privileged = True
        self._loops = [asyncio.create_task(self._watch()), asyncio.create_task(self._beat())]

    def _sweep(self) -> None:
        """Removes containers and folders of an earlier worker with the same state folder."""
        for container in self.client.containers.list(all=True, filters={"label": f"{_LABEL}={self.label}"}):
            self.remove(container)
        for entry in (self.folder / "run").iterdir():
            shutil.rmtree(entry, ignore_errors=True)
        for entry in (self.folder / "sockets").iterdir():
            entry.unlink(missing_ok=True)

    def remove(self, container: Any) -> None:
        """Kills a container and removes it with its volumes."""
        for _ in range(20):
            try:
                container.remove(force=True, v=True)
                return
            except self.errors.NotFound:
                return
            except self.errors.APIError as error:
                if error.response is None or error.response.status_code != 409:
                    raise
                time.sleep(0.25)  # somebody else is removing it

    # -- start ----------------------------------------------------------------------------------------------------

    async def start(self, request: SandboxRequest, progress: StartProgress) -> DockerSandbox:
        image = self.config.image_aliases.get(request.image, request.image)
        phase = progress.image_pull
        phase.status, phase.started_at = "running", time.time()
        try:
            await asyncio.wait_for(asyncio.to_thread(self._provide, image, request), request.startup_timeout)
        except (self.errors.DockerException, RockError, TimeoutError, OSError) as error:
            phase.status = "timeout" if isinstance(error, TimeoutError) else "failed"
            phase.message = str(error) or f"not pulled within {request.startup_timeout:g} s"
            raise SandboxStartError(f"image_pull: {phase.message}", request.sandbox_id) from error
        phase.status, phase.completed_at = "success", time.time()
        phase = progress.docker_run
        phase.status, phase.started_at = "running", time.time()
        sandbox: DockerSandbox | None = None
        try:
            container = await asyncio.to_thread(self._create, image, request)
            sandbox = DockerSandbox(self, request.sandbox_id, image, container)
            await sandbox.wait_ready(request.startup_timeout)
        except BaseException as error:
            phase.status, phase.message = "failed", str(error)
            if sandbox is not None:
                await asyncio.shield(sandbox.stop())
            else:
                await asyncio.to_thread(shutil.rmtree, self.run_folder(request.sandbox_id), True)
            if isinstance(error, (self.errors.DockerException, RockError, OSError)):
                raise SandboxStartError(f"docker_run: {error}", request.sandbox_id) from error
            raise
        phase.status, phase.completed_at = "success", time.time()
        self.running[request.sandbox_id] = sandbox
        return sandbox

    def _provide(self, image: str, request: SandboxRequest) -> None:
        """Makes sure that the image is there, by the pull policy."""
        if request.pull not in ("never", "missing", "always"):
            raise SandboxStartError(f"pull {request.pull!r}: use never, missing or always")
        if request.pull != "always":
            try:
                self.client.images.get(image)
                return
            except self.errors.ImageNotFound:
                if request.pull == "never":
                    raise
        credentials = None
        if request.registry_username:
            credentials = {"username": request.registry_username, "password": request.registry_password or ""}
        try:
            self.client.images.pull(image, auth_config=credentials)
        except self.errors.APIError as error:
            reason = error.explanation or str(error)
            raise SandboxStartError(f"image {image!r} is not here and cannot be pulled: {reason}") from error

    def _create(self, image: str, request: SandboxRequest) -> Any:
        run = self.run_folder(request.sandbox_id)
        run.mkdir(mode=0o700)
        (run / "heartbeat").touch()
        name = f"rock-{self.label[:8]}-{request.sandbox_id}"
        built = self.client.images.get(image).attrs.get("Config") or {}
        tried_privileged = self._privileged  # another start may find out meanwhile that it does not work
        try:
            return self._run(name, self._config(image, request, run, built))
        except self.errors.APIError as error:
            if self.config.privileged != "auto" or not tried_privileged or "operation not permitted" not in str(error):
                raise
        self._privileged, self._almost = False, True  # found out once, remembered
        return self._run(name, self._config(image, request, run, built))

    def _run(self, name: str, config: dict[str, Any]) -> Any:
        made = self.client.api.create_container_from_config(config, name)
        container = self.client.containers.get(made["Id"])
        try:
            container.start()
        except BaseException:
            self.remove(container)
            raise
        return container

    def _config(self, image: str, request: SandboxRequest, run: Path, built: dict[str, Any]) -> dict[str, Any]:
        """The container, as the Engine API takes it. `built` is the image's own configuration."""
        network = request.network or self.config.network
        if network not in ("none", "bridge"):
            raise SandboxStartError(f"network {network!r}: the docker runtime knows 'none' and 'bridge'")
        if network == "bridge" and self.config.network != "bridge":
            raise SandboxStartError("network 'bridge' was asked for, but runtime.network is 'none'")
        binds = [f"{run}:{_RUN}:rw"]
        binds += [f"{bind.source}:{bind.target}:{'rw' if bind.writable else 'ro'}" for bind in self.config.binds]
        command = [
            "--uds",
            f"{_RUN}/rocklet.sock",
            "--heartbeat",
            f"{_RUN}/heartbeat",
            "--patience",
            str(_PATIENCE_SECONDS),
        ]
        environment = {"ROCK_SANDBOX_ID": request.sandbox_id, "HOME": "/root", "USER": "root", **request.env}
        own = shlex.split((built.get("Labels") or {}).get(ROCKLET_LABEL, ""))
        if rocklet := self.config.rocklet_command or own:
            command = [*rocklet, *command]
        else:
            assert self._injection is not None
            binds += [f"{source}:{target}:ro" for source, target in self._injection.mounts]
            command = [*self._injection.command(), *command]
            # the rocklet gives the container's own value back to the commands that it runs
            inherited = dict(entry.partition("=")[::2] for entry in built.get("Env") or [])
            given = inherited.get(
                "ROCKLET_LD_LIBRARY_PATH", inherited.get("LD_LIBRARY_PATH", "")
            )  # the former if committed
            environment["ROCKLET_LD_LIBRARY_PATH"] = str(environment.get("LD_LIBRARY_PATH", given))
            environment["LD_LIBRARY_PATH"] = self._injection.libraries
        memory = request.memory_bytes + _ROCKLET_BYTES if request.memory_bytes else 0
        host: dict[str, Any] = {
            "NetworkMode": network,
            "PidsLimit": request.pids,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
            "Memory": memory,
            "MemorySwap": memory,
            "NanoCpus": int((request.cpus or 0) * 1e9),
        }
        if self._privileged:
            host["Privileged"] = True
        elif self._almost:
            host |= ALMOST_PRIVILEGED
            binds.append("/sys/fs/cgroup:/sys/fs/cgroup:rw")
        if self._privileged or self._almost:  # a volume of its own: a nested daemon cannot work on overlay
            host["Mounts"] = [{"Type": "volume", "Target": "/var/lib/docker"}]
        return {
            "Image": image,
            "Entrypoint": command[:1],
            "Cmd": command[1:],
            "User": "0:0",
            "Hostname": request.sandbox_id[:63],
            "Labels": {_LABEL: self.label, "rock.sandbox": request.sandbox_id},
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "HostConfig": {**host, "Binds": binds},
        }

    # -- life -----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Notices containers that have ended. Without the daemon sandboxes work on: commands reach them through the file system."""
        away = False
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                found = await asyncio.to_thread(
                    self.client.containers.list,
                    all=True,
                    ignore_removed=True,
                    filters={"label": f"{_LABEL}={self.label}"},
                )
            except (self.errors.DockerException, OSError) as error:
                if not away:
                    _LOG.error(
                        "the Docker daemon does not answer; no sandbox can be started or removed until it does: %s",
                        error,
                    )
                away = True
                continue
            if away:
                _LOG.info("the Docker daemon answers again")
            away = False
            for container in found:
                if container.id in self.orphans:
                    with contextlib.suppress(self.errors.DockerException, OSError):
                        await asyncio.to_thread(self.remove, container)
            self.orphans &= {container.id for container in found}
            states = {container.labels.get("rock.sandbox"): container.status for container in found}
            for sandbox_id, sandbox in list(self.running.items()):
                state = states.get(sandbox_id, "gone")
                if state not in ("created", "running", "restarting"):
                    sandbox.ended(f"its container is {state}")
                    await sandbox.stop()

    async def _beat(self) -> None:
        while True:
            for sandbox_id in list(self.running):
                with contextlib.suppress(OSError):
                    os.utime(self.run_folder(sandbox_id) / "heartbeat", follow_symlinks=False)
            await asyncio.sleep(_BEAT_SECONDS)

    async def remove_image(self, name: str) -> None:
        with contextlib.suppress(self.errors.ImageNotFound):
            await asyncio.to_thread(self.client.images.remove, name)

    async def close(self) -> None:
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*(sandbox.stop() for sandbox in list(self.running.values())), return_exceptions=True)
        os.close(self.sockets_fd)
        await asyncio.to_thread(self.client.close)
