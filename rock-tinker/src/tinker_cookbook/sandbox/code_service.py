"""Runs short programs in one ROCK sandbox, with the same answers as a ``/run_code`` service."""

from __future__ import annotations

import asyncio
import math
import shlex
import uuid
from typing import Any

from tinker_cookbook.exceptions import SandboxError
from tinker_cookbook.sandbox.sandbox_interface import SandboxInterface


class SandboxCodeRunner:
    """``run`` like ``SandboxFusionClient.run``, in a sandbox: each program has a folder of its own, removed afterwards."""

    def __init__(self, sandbox: SandboxInterface, max_concurrency: int = 4) -> None:
        self._sandbox = sandbox
        self._slots = asyncio.Semaphore(max_concurrency)

    async def run(
        self, code: str, files: dict[str, str] | None = None, timeout: float = 10, language: str = "python"
    ) -> tuple[bool, dict[str, Any]]:
        """Whether the code ended well, and details."""
        if language != "python":
            raise SandboxError(f"language={language!r} is not supported; use python")
        folder = f"/tmp/run-{uuid.uuid4().hex}"
        async with self._slots:
            for name, text in {"main.py": code, **(files or {})}.items():
                written = await self._sandbox.write_file(f"{folder}/{name}", text)
                if written.exit_code:
                    raise SandboxError(f"cannot write {name}: {written.stderr}")
            command = f"cd {folder} && timeout -k 1 {timeout} python3 main.py; code=$?; rm -rf {shlex.quote(folder)}; exit $code"
            result = await self._sandbox.run_command(command, timeout=math.ceil(timeout) + 10)
        ok = result.exit_code == 0
        run_result = {
            "status": "TimeLimitExceeded" if result.exit_code in (124, 137) else "Finished",
            "return_code": result.exit_code,
            "stdout": result.stdout,
            "stderr": result.stderr,
        }
        return ok, {"status": "Success" if ok else "Failed", "message": "", "run_result": run_result}

    async def close(self) -> None:
        """Remove the sandbox."""
        await self._sandbox.cleanup()
