"""Credentials of a connection: a static key, the output of a command, or a token exchanged for either."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from . import _settings
from ._credentials import default_key
from ._errors import AuthenticationError, TinkerError
from ._jwt import lifetime, looks_like_jwt, needs_refresh

_COMMAND_TIMEOUT_SECONDS = 60.0
_RETRY_AFTER_FAILURE_SECONDS = 60.0


class Credential(ABC):
    """Something that gives the value of ``X-API-Key``."""

    @abstractmethod
    async def token(self) -> str:
        """The current value."""

    async def replace(self, rejected: str) -> bool:
        """The server called ``rejected`` an invalid token. True if another one is ready now."""
        return False


class StaticCredential(Credential):
    """A key that never changes. Raises TinkerError unless it starts with ``tml-`` or ``eyJ``."""

    def __init__(self, key: str) -> None:
        if not key.startswith(("tml-", "eyJ")):
            raise TinkerError(
                f"The api_key must start with 'tml-' (key) or 'eyJ' (token), got one that starts with {key[:3]!r}; "
                "set TINKER_API_KEY or pass api_key="
            )
        self.key = key

    async def token(self) -> str:
        return self.key


class CommandCredential(Credential):
    """Runs TINKER_CREDENTIAL_CMD whenever a credential is needed."""

    def __init__(self, command: str) -> None:
        self.command = command

    async def token(self) -> str:
        return await asyncio.to_thread(self.read)

    def read(self) -> str:
        """Run the command; raises TinkerError when it fails or prints nothing."""
        try:
            done = subprocess.run(
                self.command, shell=True, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise TinkerError(
                f"TINKER_CREDENTIAL_CMD did not end within {_COMMAND_TIMEOUT_SECONDS:.0f} s; make it faster"
            ) from error
        credential = done.stdout.strip()
        if done.returncode != 0 or not credential:
            reason = done.stderr.strip()[-500:] or "it printed nothing"
            raise TinkerError(f"TINKER_CREDENTIAL_CMD ended with code {done.returncode}: {reason}")
        return credential


def resolve_credential(api_key: str | None, base_url: str, *, enforce_command: bool = False) -> Credential:
    """Find the credential for a server; raises TinkerError if there is none.

    Order: token-like argument or TINKER_API_KEY; argument or TINKER_API_KEY; TINKER_CREDENTIAL_CMD; the default key
    of the credentials file; on a loopback server a placeholder. With ``enforce_command`` (a flag of the server) only a
    token or the command will do.
    """
    key = api_key or os.environ.get("TINKER_API_KEY") or None
    command = _settings.credential_command()
    if key and looks_like_jwt(key):
        return StaticCredential(key)
    if enforce_command:
        if not command:
            raise TinkerError("this server wants credentials from a command: set TINKER_CREDENTIAL_CMD")
        return CommandCredential(command)
    if key:
        return StaticCredential(key)
    if command:
        return CommandCredential(command)
    stored = default_key()
    if stored:
        return StaticCredential(stored)
    if _settings.is_loopback(base_url):
        return StaticCredential(_settings.LOOPBACK_KEY)
    raise TinkerError(
        "The api_key client option must be set either by passing api_key to the client, by setting the "
        f"TINKER_API_KEY environment variable, or with: tinker auth login. The server is {base_url}; a server of your own "
        "is named by base_url or TINKER_BASE_URL, and needs no key on this machine"
    )


class ExchangedToken(Credential):
    """A short-lived token that ``exchange`` fetches; refreshed in the background at about half its life."""

    def __init__(self, exchange: Callable[[], Awaitable[str]]) -> None:
        self._exchange = exchange
        self._token = ""
        self._lock = asyncio.Lock()
        self._retry_at = 0.0
        self._refresher: asyncio.Task[None] | None = None

    async def token(self) -> str:
        if self._token and not needs_refresh(self._token):
            return self._token
        async with self._lock:
            if not self._token or needs_refresh(self._token):
                await self._refresh(keep_old=self._usable())
        return self._token

    async def replace(self, rejected: str) -> bool:
        async with self._lock:
            if self._token == rejected:
                self._token = await self._exchange()
        return self._token != rejected

    def current(self) -> str:
        """The token in hand, perhaps empty."""
        return self._token

    def start_refresh(self) -> None:
        """Keep the token fresh until :meth:`close`; runs on the event loop of the SDK."""
        if self._refresher is None:
            self._refresher = asyncio.create_task(self._keep_fresh())

    def close(self) -> None:
        if self._refresher is not None:
            self._refresher.cancel()

    def _usable(self) -> bool:
        span = lifetime(self._token) if self._token else None
        return span is not None and span[1] > time.time()

    async def _refresh(self, *, keep_old: bool) -> None:
        if keep_old and time.monotonic() < self._retry_at:
            return
        try:
            self._token = await self._exchange()
        except AuthenticationError:
            raise
        except TinkerError:
            self._retry_at = time.monotonic() + _RETRY_AFTER_FAILURE_SECONDS
            if not keep_old:
                raise

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(self._seconds_to_refresh())
            async with self._lock:
                try:
                    self._token = await self._exchange()
                except TinkerError as error:
                    _settings.logger.warning("token refresh failed, next try in 60 s: %s", error)
                    self._retry_at = time.monotonic() + _RETRY_AFTER_FAILURE_SECONDS

    def _seconds_to_refresh(self) -> float:
        span = lifetime(self._token)
        if span is None or self._retry_at > time.monotonic():
            return _RETRY_AFTER_FAILURE_SECONDS
        issued, expires = span
        return max(issued + (expires - issued) * random.uniform(0.45, 0.55) - time.time(), 1.0)
