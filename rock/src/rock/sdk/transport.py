"""HTTP to an admin: the one seam through which everything of the SDK goes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from rock.errors import (
    CommandTimeout,
    RockError,
    SandboxError,
    SandboxGone,
    SandboxNotFound,
    SandboxStartError,
    TransportError,
)  # fmt: skip

PREFIX = "/apis/envs/sandbox/v1"
DEFAULT_TIMEOUT_SECONDS = 300.0
_CONNECT_SECONDS = 10.0
_KINDS: dict[str, type[SandboxError]] = {
    "not_found": SandboxNotFound, "gone": SandboxGone, "start": SandboxStartError, "timeout": CommandTimeout
}  # fmt: skip


class AdminTransport:
    """One connection pool to one admin.

    Args:
        base_url: address of the admin, without the API prefix.
        headers: sent with every request (credentials of a cluster, X-Cluster, X-User-Id, ...).
    """

    def __init__(
        self, base_url: str, headers: Mapping[str, str], transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.client = httpx.AsyncClient(
            base_url=self.base_url + PREFIX,
            headers=dict(headers),
            timeout=httpx.Timeout(DEFAULT_TIMEOUT_SECONDS, connect=_CONNECT_SECONDS),
            transport=transport,
            # Plain HTTP needs no certificates; loading them would cost more than a start of a sandbox.
            verify=not self.base_url.startswith("http://"),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )

    async def call(self, method: str, path: str, *, timeout: float | None = None, **options: Any) -> Any:
        """Result of one request.

        Raises:
            TransportError: no usable answer.
            SandboxError: (or a subclass) a Failed envelope; its message is the admin's reason.
        """
        limit = httpx.Timeout(timeout or DEFAULT_TIMEOUT_SECONDS, connect=_CONNECT_SECONDS)
        try:
            answer = await self.client.request(method, path, timeout=limit, **options)
        except httpx.TimeoutException as error:
            raise TransportError(
                f"{method} {path}: admin {self.base_url} gave no answer ({type(error).__name__})"
            ) from error
        except httpx.ConnectError as error:
            raise TransportError(
                f"{method} {path}: admin {self.base_url} is not reachable ({error}); start one (rock worker start, "
                "rock admin start), or give the address of another (ROCK_BASE_URL)"
            ) from error
        except httpx.HTTPError as error:
            raise TransportError(f"{method} {path}: admin {self.base_url} is not reachable: {error!r}") from error
        return result_of(answer)

    @asynccontextmanager
    async def stream(self, path: str, params: dict[str, str], timeout: float) -> AsyncIterator[httpx.Response]:
        """An answer whose body is read in pieces."""
        try:
            async with self.client.stream("GET", path, params=params, timeout=timeout) as answer:
                if answer.headers.get("content-type", "").startswith("application/json"):
                    await answer.aread()
                    result_of(answer)
                yield answer
        except httpx.HTTPError as error:
            raise TransportError(f"GET {path}: {error!r}") from error

    async def raw(self, method: str, path: str, *, timeout: float, **options: Any) -> httpx.Response:
        """An answer that is no envelope (a port of the sandbox)."""
        try:
            return await self.client.request(
                method, path, timeout=httpx.Timeout(timeout, connect=_CONNECT_SECONDS), **options
            )
        except httpx.HTTPError as error:
            raise TransportError(f"{method} {path}: {error!r}") from error

    async def close(self) -> None:
        await self.client.aclose()


def result_of(answer: httpx.Response) -> Any:
    """The result in a Success envelope; everything else as an error."""
    try:
        envelope = answer.json()
        status = envelope["status"]
    except (ValueError, KeyError, TypeError) as error:
        where = f"{answer.request.method} {answer.request.url.path}"
        raise TransportError(f"{where}: status {answer.status_code}, no envelope: {answer.text[:300]}") from error
    if status == "Success":
        return envelope.get("result")
    raise error_of(envelope, answer.status_code)


def error_of(envelope: dict[str, Any], status_code: int) -> RockError:
    """The error that a Failed envelope stands for; its result is in `details`."""
    given = envelope.get("result")
    result: dict[str, Any] = given if isinstance(given, dict) else {}
    reason = result.get("failure_reason") or envelope.get("message") or envelope.get("error") or "no reason given"
    if status_code == 401:
        return TransportError(f"the admin asks for a key: {envelope.get('error') or reason}")
    kind = _KINDS.get(result.get("kind") or "", SandboxError)
    error = kind(str(reason), str(result.get("sandbox_id") or ""))
    error.details = result
    return error
