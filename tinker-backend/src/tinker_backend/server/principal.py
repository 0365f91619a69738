"""Who is asking.

Every route gets a ``Principal``. Without a key file there is one, ``LOCAL``. With a key file the application asks
``tinker_backend.auth.open_authenticator(path)`` for an ``Authenticator`` and calls it once per request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fastapi import Request


@dataclass(frozen=True)
class Principal:
    """A caller. ``owner`` is stored with all that the caller makes and compared on every access."""

    owner: str
    name: str = "local"
    note: str = ""
    email: str = ""
    organization: str = "local"
    key_id: int = 0


LOCAL = Principal("local")
"""The caller of a server without keys."""


class Authenticator(Protocol):
    """Turns request headers into a principal."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Looks at ``x-api-key`` (and ``authorization: bearer``; names are lower case). Raises errors.Unauthorized."""
        ...

    def issue_token(self, principal: Principal) -> str:
        """A JWT with ``exp``, ``iat``, ``sub``, ``org_id`` and ``email`` that ``authenticate`` takes instead of the key."""
        ...

    def revoke(self, principal: Principal) -> None:
        """Takes the caller's own key away."""
        ...


class LocalAuthenticator:
    """Lets everybody in as the local user; used when no key file is configured (the server then binds loopback)."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Always the local user."""
        return LOCAL

    def issue_token(self, principal: Principal) -> str:
        """Never called: the JWT exchange is off without keys."""
        raise NotImplementedError("a server without keys issues no tokens")

    def revoke(self, principal: Principal) -> None:
        """Nothing to revoke."""


def open_authenticator(keys_file: Path | None) -> Authenticator:
    """The authenticator that the configuration asks for."""
    if keys_file is None:
        return LocalAuthenticator()
    from ..auth import open_authenticator as open_key_file

    return open_key_file(keys_file)


async def current(request: Request) -> Principal:
    """The caller of this request, for use as a FastAPI dependency; a plain function would cost a thread each time."""
    principal: Principal = request.state.principal
    return principal
