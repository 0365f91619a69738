"""Ways to reach a ModelService: HTTP (direct, or through the admin's port proxy) and commands in the sandbox."""

from __future__ import annotations

import base64
import json
import shlex
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import httpx

from rock.errors import RockError
from rock.model_service import pull

INLINE_LIMIT_BYTES = 32 * 1024
"""Answers up to this size travel inside the command. The kernel allows 128 KiB a word, and base64 adds a third."""


class ChannelError(ConnectionError):
    """The exchange did not take place, or nobody knows whether it did. Trying again is right."""


class ModelServiceChannel(Protocol):
    """One method: carry an HTTP exchange to the service."""

    async def exchange(self, method: str, path: str, body: bytes | None, timeout: float) -> tuple[int, bytes]:
        """Status and body of the reply. Raises ChannelError when none came within ``timeout`` seconds."""
        ...

    async def aclose(self) -> None: ...


class HttpChannel:
    """Speaks HTTP to ``base_url``: the service itself, or the admin's proxy to its port."""

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None, token: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        sent = dict(headers or {})
        if token:
            sent["x-rock-puller-token"] = token
        self._client = httpx.AsyncClient(headers=sent, trust_env=False)

    async def exchange(self, method: str, path: str, body: bytes | None, timeout: float) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            reply = await self._client.request(
                method,
                self.base_url + path,
                content=body,
                headers=headers,
                timeout=httpx.Timeout(timeout, connect=10.0),
            )
        except httpx.HTTPError as error:
            raise ChannelError(f"{self.base_url}: {type(error).__name__}: {error}") from error
        return reply.status_code, reply.content

    async def aclose(self) -> None:
        await self._client.aclose()


class PortSandbox(Protocol):
    """What the port channel needs of a sandbox."""

    async def request(
        self, method: str, port: int, path: str = ..., *, timeout: float = ..., **options: Any
    ) -> Any: ...


class CommandSandbox(Protocol):
    """What the command channel needs of a sandbox."""

    async def execute(self, command: Any, *, timeout: float = ...) -> Any: ...

    async def write_file(self, path: str, content: str) -> Any: ...


class CommandChannel:
    """Runs the small pull program in the sandbox, one command an exchange. Needs no more than command execution.

    ``python`` is any Python 3.9 or newer of the sandbox. The program is written into the sandbox at the first exchange.
    """

    def __init__(
        self, sandbox: CommandSandbox, *, port: int, python: str = "python3", token_file: str | None = None
    ) -> None:
        self._sandbox = sandbox
        self._python = python
        self._port = port
        self._token_file = token_file
        self._program: str | None = None

    async def exchange(self, method: str, path: str, body: bytes | None, timeout: float) -> tuple[int, bytes]:
        program = await self._install()
        words = [self._python, "-SE", program, "--port", str(self._port)]
        if self._token_file:
            words += ["--token-file", self._token_file]
        words += ["call", "--method", method, "--path", path, "--timeout", f"{timeout:.1f}"]
        if body is None:
            command: list[str] = words
        elif len(body) <= INLINE_LIMIT_BYTES:
            line = shlex.join([*words, "--file", "-"])
            command = ["/bin/sh", "-c", f"printf %s {base64.b64encode(body).decode()} | base64 -d | {line}"]
        else:
            name = f"/tmp/rock-answer-{uuid.uuid4().hex}.json"
            await self._guard(self._sandbox.write_file(name, body.decode()))
            line = shlex.join([*words, "--file", name])
            command = ["/bin/sh", "-c", f"{line}; status=$?; rm -f {name}; exit $status"]
        result = await self._guard(self._sandbox.execute(command, timeout=timeout + 5))
        return _read_frame(result)

    async def aclose(self) -> None:
        return None

    async def _install(self) -> str:
        if self._program is None:
            name = f"/tmp/rock-pull-{uuid.uuid4().hex}.py"
            await self._guard(self._sandbox.write_file(name, Path(pull.__file__).read_text()))
            self._program = name
        return self._program

    @staticmethod
    async def _guard(call: Any) -> Any:
        try:
            return await call
        except Exception as error:
            raise ChannelError(f"command in the sandbox failed: {type(error).__name__}: {error}") from error


def _read_frame(result: Any) -> tuple[int, bytes]:
    for line in reversed(str(result.stdout or "").splitlines()):
        if line.startswith(pull.FRAME):
            frame = json.loads(line[len(pull.FRAME) :])
            return int(frame["status"]), json.dumps(frame["reply"]).encode()
    detail = (str(result.stderr or "") or str(result.stdout or ""))[-500:]
    raise ChannelError(f"the pull program gave no framed line (exit code {result.exit_code}): {detail}")


class SandboxPortChannel:
    """Speaks to a port of a sandbox through the admin: the command channel's own connection, no command, no file."""

    def __init__(self, sandbox: PortSandbox, port: int, token: str | None = None) -> None:
        self._sandbox = sandbox
        self._port = port
        self._headers = {"x-rock-puller-token": token} if token else {}

    async def exchange(self, method: str, path: str, body: bytes | None, timeout: float) -> tuple[int, bytes]:
        headers = dict(self._headers)
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            reply = await self._sandbox.request(
                method, self._port, path, timeout=timeout, content=body, headers=headers
            )
        except RockError as error:
            raise ChannelError(str(error)) from error
        return reply.status_code, reply.content

    async def aclose(self) -> None:
        return None
