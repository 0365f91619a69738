"""Harbor environment on local sandboxes: namespaces instead of Docker, in the outer sandbox or right on a machine."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

from rock.harbor.images import ImageBuilder, StandIn, TaskImage, python_binds
from rock.runtime.local import Bind, Limits, LocalRoot, NamespaceSandbox, SandboxSpec
from rock.runtime.local.identity import initial_user_namespace

STATE_VARIABLE = "ROCK_HARBOR_STATE"
STORES_VARIABLE = "ROCK_HARBOR_STORES"
SHARED_STORE = "/opt/task-layers"
MARKER_FOLDERS = ("/logs/agent", "/logs/verifier", "/logs/artifacts", "/tests", "/solution")


def default_state() -> Path:
    """Folder of sandboxes and layers: ``$ROCK_HARBOR_STATE``; in a sandbox its memory file system, since an overlay cannot lie
    on another overlay; else the user's cache."""
    named = os.environ.get(STATE_VARIABLE)
    if named:
        return Path(named)
    if not initial_user_namespace():
        return Path("/dev/shm/rock-harbor")
    return Path.home() / ".cache" / "rock" / "harbor"


class LocalEnvironment(BaseEnvironment):
    """A task environment as a local sandbox.

    Args (``environment.kwargs`` of a job, ``--ek`` of the command line):
        state: folder of sandboxes and layers; default see ``default_state``.
        stores: further folders with built layers, which may be read-only; default ``$ROCK_HARBOR_STORES`` (separated by
            colons) and ``/opt/task-layers`` where it exists.
        stand_ins: image pattern to {base, layers, trees, env}: what stands in for images that cannot be pulled.
        agent_pythons: Python programs of the agents, made visible read-only with all they need.
        binds: further folders, each {source, target, writable}.
        network: "host" shares the network of what surrounds the environment, "none" has a loopback only. "auto": "host" inside
            a sandbox, and on a machine if the task's policy is public.
        build_network: network of RUN instructions.
    """

    def __init__(
        self,
        *args: Any,
        state: str | None = None,
        stores: list[str] | None = None,
        stand_ins: dict[str, dict[str, Any]] | None = None,
        agent_pythons: list[str] | None = None,
        binds: list[dict[str, Any]] | None = None,
        network: str = "auto",
        build_network: str = "none",
        **kwargs: Any,
    ) -> None:
        if network not in ("auto", "host", "none"):
            raise ValueError(f"environment kwarg network is {network!r}; choose auto, host or none")
        self._state = Path(state) if state else default_state()
        named = os.environ.get(STORES_VARIABLE, "")
        self._stores = [Path(store) for store in stores or [*filter(None, named.split(":")), SHARED_STORE]]
        self._stand_ins = {pattern: _stand_in(pattern, fields) for pattern, fields in (stand_ins or {}).items()}
        self._agent_pythons = list(agent_pythons or [])
        self._binds = [Bind(**bind) for bind in binds or []]
        self._network_choice = network
        self._build_network = build_network
        self._sandbox: NamespaceSandbox | None = None
        self._image: TaskImage | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "rock-local"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        if not (self.environment_dir / "Dockerfile").is_file():
            raise FileNotFoundError(
                f"{self.environment_dir} has no Dockerfile; local sandboxes build the environment from one "
                "(docker-compose files need the docker environment)"
            )

    async def start(self, force_build: bool) -> None:
        """Builds the image (from the cache as a rule) and starts the sandbox.

        Raises:
            DockerfileError, ImageError: the image cannot be built.
            SandboxStartError: the sandbox did not come up.
        """
        root = LocalRoot(self._state)
        builder = ImageBuilder(
            root,
            stores=[store for store in self._stores if store.is_dir()],
            stand_ins=self._stand_ins,
            network=self._resolved(self._build_network),
            timeout=self.task_env_config.build_timeout_sec,
        )
        self._image = image = await builder.build(self.environment_dir, force=force_build)
        memory = self.task_env_config.memory_mb
        spec = SandboxSpec(
            sandbox_id=_sandbox_id(self.session_id),
            base="scratch" if image.base == "scratch" else "host",
            layers=image.layers,
            trees=image.trees,
            binds=(*python_binds(*self._agent_pythons), *self._binds),
            network="host" if self._resolved(self._network_choice) == "host" else "none",
            env=image.env,
            workdir=self.task_env_config.workdir or image.workdir,
            limits=Limits(memory_bytes=memory * 1024 * 1024 if memory else None, cpus=self.task_env_config.cpus),
        )
        self._sandbox = NamespaceSandbox(root, spec)
        await self._sandbox.start()
        folders = [*MARKER_FOLDERS, *(str(mount["target"]) for mount in self._mounts)]
        await self._checked(["install", "-d", "-m", "777", *folders])

    def _resolved(self, network: str) -> str:
        if network != "auto":
            return network
        if not initial_user_namespace():
            return "host"
        return "host" if self._network_is_public else "none"

    async def stop(self, delete: bool) -> None:
        """Ends the sandbox. Its files go with it: nothing of a local sandbox can be kept."""
        if self._sandbox is not None:
            await self._sandbox.stop()
            self._sandbox = None

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a command by bash. Exit code 124 says that ``timeout_sec`` was over; the command is killed then, as it is when
        the caller is cancelled."""
        chosen = self._resolve_user(user)
        default = self._image.user if self._image is not None else ""
        done = await self._running().exec(
            command,
            cwd=cwd,
            env=self._merge_env(env),
            user=str(chosen) if chosen is not None else default or None,
            timeout=timeout_sec,
        )
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._running().put(source_path, str(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._running().put(source_dir, str(target_dir))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self._running().get(str(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self._running().get(str(source_dir), target_dir)

    async def _checked(self, words: list[str]) -> None:
        done = await self._running().exec(words, user="root", timeout=30)
        if done.exit_code != 0:
            raise RuntimeError(f"{' '.join(words)} failed in the task environment: {done.stderr.strip()}")

    def _running(self) -> NamespaceSandbox:
        if self._sandbox is None:
            raise RuntimeError(f"the environment of {self.session_id} is not started")
        return self._sandbox


def _sandbox_id(session_id: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", session_id)[:40].lstrip("-_.")
    return f"task-{plain}-{uuid.uuid4().hex[:8]}"


def _stand_in(pattern: str, fields: dict[str, Any]) -> StandIn:
    unknown = set(fields) - {"base", "layers", "trees", "env"}
    if unknown:
        raise ValueError(
            f"stand_ins[{pattern!r}] has unknown field {sorted(unknown)[0]!r}; known are base, layers, trees, env"
        )
    return StandIn(
        base=fields.get("base", "host"),
        layers=tuple(fields.get("layers", ())),
        trees=tuple(fields.get("trees", ())),
        env=dict(fields.get("env", {})),
    )
