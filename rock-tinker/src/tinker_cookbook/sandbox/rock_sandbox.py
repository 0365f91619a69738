"""Sandboxes of a ROCK service. Needs the package ``rl-rock``."""

from __future__ import annotations

import asyncio
import shlex
import time
from typing import Any

from tinker_cookbook.exceptions import ConfigurationError, SandboxError
from tinker_cookbook.sandbox.sandbox_interface import SandboxResult, SandboxTerminatedError

DEFAULT_MAX_OUTPUT_BYTES = 128 * 1024


class RockSandbox:
    """A sandbox made by ROCK admin; ``SandboxInterface`` over ``rock.sdk``."""

    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox
        self._closed = False

    @classmethod
    async def create(
        cls,
        base_url: str = "http://127.0.0.1:18080",
        image: str = "local",
        timeout: int = 3600,
        memory: str = "4g",
        cpus: float = 2,
        startup_timeout: float = 180,
        **options: Any,
    ) -> RockSandbox:
        """Start a sandbox; it clears itself ``timeout`` seconds after its last use."""
        try:
            from rock.sdk import Sandbox, SandboxConfig
        except ImportError as error:
            raise ConfigurationError("sandboxes need the package rl-rock: pip install rl-rock") from error
        config = SandboxConfig(
            base_url=base_url,
            image=image,
            memory=memory,
            cpus=cpus,
            auto_clear_seconds=timeout,
            startup_timeout=startup_timeout,
            **options,
        )
        sandbox = Sandbox(config)
        try:
            await sandbox.start()
        except Exception as error:
            raise SandboxError(f"no sandbox from {base_url} with image {image!r}: {error}") from error
        return cls(sandbox)

    @property
    def sandbox_id(self) -> str:
        """Its id at the service."""
        return str(self._sandbox.sandbox_id)

    async def send_heartbeat(self, timeout: int = 30) -> None:
        """Run nothing, which counts as use."""
        await self.run_command("true", timeout=timeout)

    async def run_command(
        self, command: str, workdir: str | None = None, timeout: int = 60, max_output_bytes: int | None = None
    ) -> SandboxResult:
        """Run a shell command in a fresh shell."""
        if self._closed:
            raise SandboxTerminatedError(f"sandbox {self.sandbox_id} was removed")
        from rock.errors import CommandTimeout, SandboxGone

        started = time.monotonic()
        try:
            result = await asyncio.wait_for(
                self._sandbox.execute(["bash", "-c", command], timeout=timeout, cwd=workdir), timeout + 30
            )
        except (TimeoutError, CommandTimeout):
            return SandboxResult(stdout="", stderr=f"no answer within {timeout} s", exit_code=124)
        except SandboxGone as error:
            raise SandboxTerminatedError(f"sandbox {self.sandbox_id}: {error}") from error
        seconds = {"time/sandbox_command": time.monotonic() - started}
        limit = DEFAULT_MAX_OUTPUT_BYTES if max_output_bytes is None else max_output_bytes
        stdout, stderr = (result.stdout or "")[:limit], (result.stderr or "")[:limit]
        return SandboxResult(stdout=stdout, stderr=stderr, exit_code=int(result.exit_code), metrics=seconds)

    async def read_file(self, path: str, max_bytes: int | None = None, timeout: int = 60) -> SandboxResult:
        """A file's text."""
        limit = f"head -c {max_bytes} -- {shlex.quote(path)}" if max_bytes else f"cat -- {shlex.quote(path)}"
        return await self.run_command(limit, timeout=timeout, max_output_bytes=max_bytes or 16 * 1024 * 1024)

    async def write_file(
        self, path: str, content: str | bytes, executable: bool = False, timeout: int = 60
    ) -> SandboxResult:
        """Replace a file."""
        folder = path.rsplit("/", 1)[0] or "/"
        made = await self.run_command(f"mkdir -p -- {shlex.quote(folder)}", timeout=timeout)
        if made.exit_code:
            return made
        text = content if isinstance(content, str) else content.decode("utf-8", errors="surrogateescape")
        await asyncio.wait_for(self._sandbox.write_file(path, text), timeout)
        if not executable:
            return SandboxResult(stdout="", stderr="", exit_code=0)
        return await self.run_command(f"chmod +x -- {shlex.quote(path)}", timeout=timeout)

    async def cleanup(self) -> None:
        """Remove the sandbox; a second call does nothing."""
        if not self._closed:
            self._closed = True
            await self._sandbox.stop()
