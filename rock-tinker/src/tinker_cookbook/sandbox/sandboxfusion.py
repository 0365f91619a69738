"""Client of a ``/run_code`` service (SandboxFusion's contract)."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import Any

import httpx

from tinker_cookbook.exceptions import SandboxError

DEFAULT_URL = "http://localhost:8080/run_code"


class SandboxFusionClient:
    """POSTs ``{code, language, run_timeout, files}``; the answer's ``status`` is "Success" or a failure.

    The URL comes from ``SANDBOX_URL``. At most ``max_concurrency`` (by default ``SANDBOX_MAX_CONCURRENCY``, else 4) runs at
    once.
    """

    def __init__(self, url: str | None = None, max_concurrency: int | None = None) -> None:
        self.url = url or os.environ.get("SANDBOX_URL", DEFAULT_URL)
        self._slots = asyncio.Semaphore(max_concurrency or int(os.environ.get("SANDBOX_MAX_CONCURRENCY", "4")))
        self._http = httpx.AsyncClient(timeout=None)

    async def run(
        self, code: str, files: dict[str, str] | None = None, timeout: float = 10, language: str = "python"
    ) -> tuple[bool, dict[str, Any]]:
        """Whether the code ended well, and the whole answer.

        Raises:
            SandboxError: the service cannot be reached or answers with an error of its own.
        """
        body = {
            "code": code,
            "language": language,
            "run_timeout": timeout,
            "files": {name: base64.b64encode(text.encode()).decode() for name, text in (files or {}).items()},
        }
        async with self._slots:
            try:
                response = await self._http.post(self.url, json=body, timeout=timeout + 30)
                response.raise_for_status()
            except httpx.HTTPError as error:
                raise SandboxError(
                    f"code service {self.url}: {error or type(error).__name__} (set SANDBOX_URL)"
                ) from error
        answer: dict[str, Any] = response.json()
        if answer.get("status") == "SandboxError":
            raise SandboxError(f"code service {self.url}: {answer.get('message')}")
        return answer.get("status") == "Success", answer

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()
