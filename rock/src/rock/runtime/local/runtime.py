"""The local runtime: NamespaceSandbox with a rocklet inside, for the worker."""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from rock.config import RuntimeConfig
from rock.errors import RockError, SandboxStartError
from rock.rocklet.server import listen
from rock.runtime.base import SandboxRequest, StartProgress
from rock.runtime.local.images import ImageStore, LocalImage
from rock.runtime.local.root import LocalRoot
from rock.runtime.local.sandbox import NamespaceSandbox
from rock.runtime.local.spec import Bind, Limits, SandboxSpec

_ZYGOTE_SECONDS = 30.0
_ROCKLET_SECONDS = 15.0
_DYING_SECONDS = 60.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Zygote:
    """The forking rocklet process of this worker; started again when it has died."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._lock = asyncio.Lock()

    async def launch(self, request: dict[str, Any], listener: socket.socket, log: Path) -> None:
        """Starts a rocklet in the sandbox that `request` describes, serving on `listener`."""
        async with self._lock:
            await self._ensure()
            with log.open("ab") as log_stream:
                descriptors = array.array("i", [listener.fileno(), log_stream.fileno()])
                assert self._control is not None
                self._control.sendmsg(
                    [json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors.tobytes())]
                )

    async def warm(self) -> None:
        async with self._lock:
            await self._ensure()

    async def _ensure(self) -> None:
        if self._process is not None and self._process.returncode is None:
            return
        await self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        source = str(Path(__file__).parents[3])
        with self.log.open("ab") as log_stream:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r}); from rock.rocklet.zygote import main; main()",
                str(theirs.fileno()), pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, stdout=log_stream,
                stderr=log_stream, env={"PATH": _PATH, "LANG": "C.UTF-8", "PYTHONSAFEPATH": "1"}, cwd="/",
            )  # fmt: skip
        theirs.close()
        ours.setblocking(False)
        self._control = ours
        try:
            answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(ours, 16), _ZYGOTE_SECONDS)
        except TimeoutError:
            answer = b""
        ours.setblocking(True)
        if answer != b"warm":
            await self.close()
            raise SandboxStartError(f"the rocklet zygote did not start; see {self.log}")

    async def close(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
            self._process = None


class LocalSandbox:
    """A NamespaceSandbox whose rocklet answers on `socket_path`."""

    def __init__(self, runtime: LocalRuntime, sandbox: NamespaceSandbox, image_name: str, image: LocalImage) -> None:
        self.runtime = runtime
        self.sandbox = sandbox
        self.sandbox_id = sandbox.spec.sandbox_id
        self.image = image_name
        self.content = image
        self._listener: socket.socket | None = None
        self._reviving = asyncio.Lock()

    @property
    def alive(self) -> bool:
        return self.sandbox.running

    @property
    def end_reason(self) -> str | None:
        return self.sandbox.end_reason

    @property
    def socket_path(self) -> str:
        # Through the descriptor of the folder: the address of a UNIX socket may not be longer than 107 bytes.
        return f"/proc/self/fd/{self.runtime.run_fd}/{self.sandbox_id}/rocklet.sock"

    async def launch_rocklet(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener = listen(self.socket_path)
        env = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": "/root", "USER": "root", **self.sandbox.spec.env}
        request = json.loads(self.sandbox.enter_request("exec", env=env, cwd=self.sandbox.spec.workdir))
        log = self.runtime.root.run_folder(self.sandbox_id) / "rocklet.log"
        await self.runtime.zygote.launch(request, self._listener, log)
        transport = httpx.AsyncHTTPTransport(uds=self.socket_path, verify=False)
        end = time.monotonic() + _ROCKLET_SECONDS
        # The listening socket is ours until the rocklet has it, so a dead rocklet shows as a time-out, not as a refusal.
        async with httpx.AsyncClient(
            transport=transport, base_url="http://rocklet", timeout=_ROCKLET_SECONDS
        ) as client:
            self._listener.close()
            self._listener = None
            while True:
                try:
                    if (await client.get("/is_alive")).status_code == 200:
                        return
                except httpx.HTTPError as error:
                    text = log.read_text(errors="replace")[-1000:] if log.exists() else ""
                    if not self.alive or text or time.monotonic() > end:
                        raise SandboxStartError(
                            f"the rocklet of sandbox {self.sandbox_id} did not answer: {text or repr(error)}"
                        ) from error
                await asyncio.sleep(0.01)

    async def revive(self) -> bool:
        async with self._reviving:
            if not self.alive:
                return False
            with contextlib.suppress(httpx.HTTPError):
                transport = httpx.AsyncHTTPTransport(uds=self.socket_path, verify=False)
                async with httpx.AsyncClient(transport=transport, base_url="http://rocklet", timeout=5) as client:
                    await client.get("/is_alive")
                    return True
            (self.runtime.root.run_folder(self.sandbox_id) / "rocklet.log").unlink(missing_ok=True)
            await self.launch_rocklet()
            return True

    async def commit(self, tag: str) -> dict[str, Any]:
        layer = Path(await self.sandbox.snapshot()).name
        image = self.content.model_copy(update={"layers": [layer, *self.content.layers]})
        self.runtime.images.save(tag, image)
        return {"image": tag, "layer": layer}

    async def stop(self) -> None:
        await self.sandbox.stop()
        self.runtime.running.pop(self.sandbox_id, None)


class LocalRuntime:
    """Sandboxes from namespaces on this machine."""

    name = "local"

    def __init__(self, config: RuntimeConfig, folder: Path) -> None:
        self.config = config
        self.root = LocalRoot(folder)
        self.images = ImageStore(self.root)
        self.run_fd = os.open(self.root.folder / "run", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.zygote = Zygote(self.root.folder / "zygote.log")
        self.running: dict[str, LocalSandbox] = {}
        self._sweeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await asyncio.to_thread(self.root.sweep)
        self._sweeping = asyncio.create_task(self._sweep_the_dying())
        await self.zygote.warm()

    async def _sweep_the_dying(self) -> None:
        """Sandboxes of a worker and keeper that were just killed may need a moment to die; until then their files are in use."""
        run = self.root.folder / "run"
        left = {entry.name for entry in run.iterdir()}
        end = time.monotonic() + _DYING_SECONDS
        while left and time.monotonic() < end:
            await asyncio.sleep(0.25)
            await asyncio.to_thread(self.root.sweep, left)
            left &= {entry.name for entry in run.iterdir()}

    async def start(self, request: SandboxRequest, progress: StartProgress) -> LocalSandbox:
        progress.image_pull.status, progress.image_pull.started_at = "running", time.time()
        try:
            name = self.config.image_aliases.get(request.image, request.image)
            image = self.images.load(name)
            layers = tuple(str(self.root.layer(digest)) for digest in image.layers)
        except (OSError, RockError) as error:
            progress.image_pull.status, progress.image_pull.message = "failed", str(error)
            raise SandboxStartError(f"image_pull: {error}", request.sandbox_id) from error
        progress.image_pull.status, progress.image_pull.completed_at = "success", time.time()
        progress.docker_run.status, progress.docker_run.started_at = "running", time.time()
        try:
            spec = self._spec(request, image, layers)
            sandbox = LocalSandbox(self, NamespaceSandbox(self.root, spec), name, image)
            async with asyncio.timeout(request.startup_timeout):
                await sandbox.sandbox.start()
                await sandbox.launch_rocklet()
        except BaseException as error:
            reason = (
                f"not ready within {request.startup_timeout:g} s" if isinstance(error, TimeoutError) else str(error)
            )
            progress.docker_run.status = "timeout" if isinstance(error, TimeoutError) else "failed"
            progress.docker_run.message = reason
            if "sandbox" in locals():
                await asyncio.shield(sandbox.stop())
            if isinstance(error, (OSError, ValueError, RockError)):
                raise SandboxStartError(f"docker_run: {reason}", request.sandbox_id) from error
            raise
        progress.docker_run.status, progress.docker_run.completed_at = "success", time.time()
        self.running[request.sandbox_id] = sandbox
        return sandbox

    def _spec(self, request: SandboxRequest, image: LocalImage, layers: tuple[str, ...]) -> SandboxSpec:
        network = request.network or self.config.network
        if network not in ("none", "host"):
            raise ValueError(f"network {network!r}: the local runtime knows 'none' and 'host'")
        if network == "host" and self.config.network != "host":
            raise ValueError("network 'host' was asked for, but runtime.network of the configuration is 'none'")
        binds = [Bind(bind.source, bind.target) for bind in image.binds]
        binds += [Bind(bind.source, bind.target, bind.writable) for bind in self.config.binds]
        return SandboxSpec(
            sandbox_id=request.sandbox_id,
            base="scratch" if image.base == "scratch" else "host",
            layers=layers,
            trees=tuple(dict.fromkeys([*image.trees, *self.config.trees])),
            binds=tuple(binds),
            network="host" if network == "host" else "none",
            etc=tuple(self.config.etc),
            env={**image.env, **request.env},
            workdir=image.workdir,
            hostname=request.sandbox_id[:63],
            limits=Limits(memory_bytes=request.memory_bytes, cpus=request.cpus, pids=request.pids),
        )

    async def remove_image(self, name: str) -> None:
        await asyncio.to_thread(self.images.remove, name)

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        await asyncio.gather(*(sandbox.stop() for sandbox in list(self.running.values())), return_exceptions=True)
        await self.zygote.close()
        os.close(self.run_fd)
