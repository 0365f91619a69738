"""Task images for local sandboxes: a Dockerfile becomes layers, each cached by the content of all that went into it."""

from __future__ import annotations

import asyncio
import fnmatch
import glob
import hashlib
import json
import logging
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rock.harbor.assembly import assemble, can_assemble
from rock.harbor.dockerfile import CopyStep, Dockerfile, FolderStep, RunStep, Step, copy_sources, read_dockerfile
from rock.harbor.tarballs import extract_below
from rock.runtime.local import Bind, LocalRoot, NamespaceSandbox, SandboxSpec

logger = logging.getLogger("rock.harbor.images")

FORMAT = "1"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOST_IMAGES = ("debian", "ubuntu", "buildpack-deps", "local", "host")


class ImageError(RuntimeError):
    """A task image cannot be built."""


@dataclass(frozen=True)
class StandIn:
    """What stands in for an image that cannot be pulled: this machine's system folders and what is laid over them."""

    base: str = "host"
    layers: tuple[str, ...] = ()
    trees: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """Changes when the stand-in's content can have changed."""
        parts: list[Any] = [self.base, list(self.layers), list(self.trees), self.env, platform.machine()]
        if self.base == "host":
            parts.append(_file_mark("/var/lib/dpkg/status") or _file_mark("/etc/os-release"))
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class TaskImage:
    """A built image. ``layers`` are folders, topmost first; ``env``, ``workdir``, ``user``, ``shell`` hold for commands."""

    base: str
    layers: tuple[str, ...]
    trees: tuple[str, ...]
    env: dict[str, str]
    workdir: str
    user: str


def resolve_image(name: str, stand_ins: Mapping[str, StandIn] | None = None) -> StandIn:
    """The stand-in for an image name: declared ones first (patterns such as ``"registry/x:*"``), then ``scratch``,
    ``python:X.Y…`` (a Python of this machine) and plain Debian and Ubuntu images (this machine's system).

    Raises:
        ImageError: nothing stands in for it.
    """
    for pattern, stand_in in (stand_ins or {}).items():
        if fnmatch.fnmatchcase(name, pattern):
            return stand_in
    if name == "scratch":
        return StandIn(base="scratch")
    repository, _, tag = name.rpartition("/")[2].partition(":")
    if repository in _HOST_IMAGES:
        return StandIn()
    if repository == "python":
        version = ".".join(tag.partition("-")[0].split(".")[:2]) or "3"
        return _python_stand_in(name, version)
    raise ImageError(
        f"image {name!r} cannot be pulled by local sandboxes and nothing stands in for it; declare one in the environment's "
        "kwargs (stand_ins: {pattern: {base: host, trees: [...]}}), or use the docker runtime"
    )


def find_python(version: str) -> str | None:
    """A Python of this version (like ``"3.11"``) on this machine; one of the system is preferred."""
    for folder in ("/usr/bin", "/usr/local/bin"):
        if os.access(f"{folder}/python{version}", os.X_OK):
            return f"{folder}/python{version}"
    patterns = (
        os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python{version}"),
        os.path.expanduser(f"~/.local/share/uv/python/cpython-{version}*/bin/python{version}"),
        f"/opt/python*/bin/python{version}",
    )
    found = [path for pattern in patterns for path in sorted(glob.glob(pattern), reverse=True)]
    on_path = shutil.which(f"python{version}")
    candidates = [*found, *([on_path] if on_path else []), sys.executable]
    for path in candidates:
        real = os.path.realpath(path)
        if os.path.basename(real) == f"python{version}" and os.path.isfile(real):
            return real
    return None


def _python_stand_in(image: str, version: str) -> StandIn:
    python = find_python(version)
    if python is None:
        raise ImageError(
            f"image {image!r} needs Python {version}, which this machine does not have; install it "
            f"(apt-get install python{version}, or: uv python install {version})"
        )
    if python.startswith(("/usr/bin/", "/usr/local/bin/")):
        return StandIn()
    prefix = str(Path(python).parents[1])
    return StandIn(trees=(prefix,), env={"PATH": f"{prefix}/bin:{DEFAULT_PATH}"})


class ImageBuilder:
    """Builds task images in a LocalRoot, and finds those that another store (a read-only one, say) has already.

    Args:
        root: where sandboxes of the build run and new layers are kept.
        stores: further folders of images, looked through first. They may be read-only.
        network: of RUN instructions: "none" or "host".
        timeout: seconds for the whole build.
    """

    def __init__(
        self,
        root: LocalRoot,
        *,
        stores: Sequence[Path] = (),
        stand_ins: Mapping[str, StandIn] | None = None,
        network: str = "none",
        timeout: float = 600.0,
    ) -> None:
        self.root = root
        self.stores = [*stores, root.folder]
        self.stand_ins = stand_ins
        self.network = network
        self.timeout = timeout

    async def build(self, folder: Path, *, force: bool = False) -> TaskImage:
        """The image of the Dockerfile in ``folder``, from the cache where possible.

        Raises:
            DockerfileError: the Dockerfile asks for something that local sandboxes cannot do.
            ImageError: a step failed.
        """
        path = folder / "Dockerfile"
        first = read_dockerfile(path)
        stand_in = resolve_image(first.image, self.stand_ins)
        dockerfile = read_dockerfile(path, base_env={"PATH": DEFAULT_PATH, **stand_in.env})
        layers: tuple[str, ...] = stand_in.layers
        key = hashlib.sha256(f"{FORMAT}\0{stand_in.fingerprint()}".encode()).hexdigest()
        for segment in _segments(dockerfile):
            key = _segment_key(key, segment, folder)
            layer = None if force else self._find(key)
            if layer is None:
                logger.info("building %d steps of %s from line %d", len(segment), path, segment[0].line)
                if can_assemble(segment, layers):
                    layer = await asyncio.to_thread(assemble, segment, folder, self.root, layers)
                else:
                    layer = await self._run(segment, folder, stand_in, layers)
                self._remember(key, layer)
            # Steps that change nothing give the empty layer, and an overlay refuses the same folder twice.
            if layer not in layers and any(os.scandir(layer)):
                layers = (layer, *layers)
        final = dockerfile.final
        return TaskImage(stand_in.base, layers, stand_in.trees, dict(final.env), final.workdir, final.user)

    def _find(self, key: str) -> str | None:
        for store in self.stores:
            try:
                digest = (store / "built" / key).read_text().strip()
            except OSError:
                continue
            layer = store / "layers" / digest
            if layer.is_dir():
                return str(layer)
        return None

    def _remember(self, key: str, layer: str) -> None:
        folder = self.root.folder / "built"
        folder.mkdir(exist_ok=True)
        scratch = folder / f".{key}.{os.getpid()}"
        scratch.write_text(Path(layer).name + "\n")
        scratch.replace(folder / key)

    async def _run(self, segment: Sequence[Step], folder: Path, stand_in: StandIn, layers: tuple[str, ...]) -> str:
        spec = SandboxSpec(
            sandbox_id=f"build-{uuid.uuid4().hex[:16]}",
            base="scratch" if stand_in.base == "scratch" else "host",
            layers=layers,
            trees=stand_in.trees,
            network="host" if self.network == "host" else "none",
            env={"PATH": DEFAULT_PATH, **stand_in.env},
        )
        sandbox = NamespaceSandbox(self.root, spec)
        await sandbox.start()
        try:
            for step in segment:
                await self._step(sandbox, step, folder)
            return await sandbox.snapshot()
        finally:
            await sandbox.stop()

    async def _step(self, sandbox: NamespaceSandbox, step: Step, folder: Path) -> None:
        match step:
            case FolderStep():
                await self._exec(sandbox, ["mkdir", "-p", step.path], step)
            case CopyStep():
                await self._copy(sandbox, step, folder)
            case RunStep():
                command = step.command
                words = [*step.context.shell, command] if isinstance(command, str) else list(command)
                await self._exec(sandbox, words, step, as_user=True)

    async def _exec(self, sandbox: NamespaceSandbox, words: list[str], step: Step, *, as_user: bool = False) -> None:
        context = step.context
        done = await sandbox.exec(
            words,
            cwd=context.workdir if as_user else "/",
            env={**context.args, **context.env},
            user=(context.user or None) if as_user else None,
            timeout=self.timeout,
        )
        if done.timed_out:
            raise ImageError(
                f"line {step.line} of the Dockerfile ran past the build's {self.timeout:g} s (build_timeout_sec)"
            )
        if done.exit_code != 0:
            tail = (done.stdout[-1500:] + done.stderr[-2500:]).strip()
            raise ImageError(f"line {step.line} of the Dockerfile failed with exit code {done.exit_code}: {tail}")

    async def _copy(self, sandbox: NamespaceSandbox, step: CopyStep, folder: Path) -> None:
        sources = copy_sources(step, folder)
        into_folder = step.target.endswith("/") or len(sources) > 1
        target = step.target.rstrip("/") or "/"
        if not into_folder and (await sandbox.exec(["test", "-d", target], timeout=30)).exit_code == 0:
            into_folder = True
        with tempfile.TemporaryDirectory() as scratch:
            for source in sources:
                place = f"{target.rstrip('/')}/{source.name}" if into_folder and source.is_file() else target
                if step.unpack and source.is_file() and tarfile.is_tarfile(source):
                    unpacked = Path(scratch) / uuid.uuid4().hex
                    with tarfile.open(source) as archive:
                        extract_below(archive, unpacked)
                    source, place = unpacked, target
                if source.is_dir():
                    await self._exec(sandbox, ["mkdir", "-p", place], step)
                await sandbox.put(source, place)
                if step.mode is not None:
                    await self._exec(sandbox, ["chmod", "-R", f"{step.mode:o}", place], step)
                if step.owner:
                    await self._exec(sandbox, ["chown", "-R", step.owner, place], step)


def _segments(dockerfile: Dockerfile) -> list[list[Step]]:
    """Steps grouped into layers: files and folders first, then the commands that use them."""
    segments: list[list[Step]] = []
    for step in dockerfile.steps:
        after_run = segments and isinstance(segments[-1][-1], RunStep)
        if not segments or (after_run and not isinstance(step, RunStep)):
            segments.append([])
        segments[-1].append(step)
    return segments


def _segment_key(parent: str, segment: Sequence[Step], folder: Path) -> str:
    digest = hashlib.sha256(parent.encode())
    for step in segment:
        described = {"kind": type(step).__name__, **asdict(step)}
        described.pop("line")
        digest.update(json.dumps(described, sort_keys=True).encode())
        if isinstance(step, CopyStep):
            for source in copy_sources(step, folder):
                _hash_tree(source, digest)
    return digest.hexdigest()


def _hash_tree(path: Path, digest: Any) -> None:
    paths = [path] if not path.is_dir() else [path, *sorted(path.rglob("*"))]
    for one in paths:
        info = one.lstat()
        name = "" if one == path else one.relative_to(path).as_posix()
        digest.update(f"{name}\0{info.st_mode:o}\0".encode())
        if one.is_symlink():
            digest.update(os.readlink(one).encode())
        elif one.is_file():
            with one.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())


def _file_mark(path: str) -> str:
    try:
        info = os.stat(path)
    except OSError:
        return ""
    return f"{path}:{info.st_size}:{info.st_mtime_ns}"


def python_binds(*pythons: str) -> tuple[Bind, ...]:
    """Read-only binds that make a Python of this machine (a virtual environment and its base) usable inside."""
    binds: dict[str, Bind] = {}
    for python in pythons:
        environment = Path(python).absolute().parents[1]
        real = Path(os.path.realpath(python)).parents[1]
        for folder in (environment, real):
            if not str(folder).startswith(("/usr", "/bin", "/lib")):
                binds[str(folder)] = Bind.of(folder)
    return tuple(binds.values())
