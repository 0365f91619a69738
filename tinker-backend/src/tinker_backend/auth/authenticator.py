"""Turns the headers of a request into the caller, by the key file and the tokens issued from it."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigError, Unauthorized, Unavailable
from ..server.principal import Principal
from . import tokens
from .key_file import KeyFile, KeyRecord, find

_log = logging.getLogger(__name__)
_MAX_CREDENTIAL = 8192


class MissingKey(Unauthorized):
    """No key, or one that this server does not know."""

    headers = {"www-authenticate": 'Bearer realm="tinker"'}


class InvalidToken(Unauthorized):
    """A token that must be exchanged anew; clients that see this header do so and repeat the request."""

    headers = {"www-authenticate": 'Bearer realm="tinker", error="invalid_token"'}


class KeyAuthenticator:
    """Checks keys against the file, which is read again whenever it changed: a new key works, and a revoked one stops
    working, without a restart. A file that becomes unreadable closes the door."""

    def __init__(self, path: Path) -> None:
        self._file = KeyFile(path)
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._records: list[KeyRecord] = []
        self._reload()
        if all(record.revoked_at for record in self._records):
            _log.warning("%s holds no key in use: nobody can come in", path)

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The caller. Takes the key or a token from ``x-api-key`` or ``authorization: bearer``.

        Raises Unauthorized; its message never repeats what was sent.
        """
        credential = _credential(headers)
        if len(credential) > _MAX_CREDENTIAL:
            raise MissingKey("the key is longer than any key of this server")
        records = self._current()
        if credential.startswith("eyJ"):
            return _principal(self._by_token(credential, records))
        record = find(records, credential)
        if record is None:
            raise MissingKey("the API key is not known to this server, or was revoked")
        return _principal(record)

    def issue_token(self, principal: Principal) -> str:
        """A token for this caller. It ends after an hour, with the server, or with its key."""
        claims = {
            "sub": principal.owner,
            "org_id": principal.organization,
            "email": principal.email,
            "key_id": principal.key_id,
        }
        return tokens.issue(self._secret, claims)

    def revoke(self, principal: Principal) -> None:
        """Takes the caller's own key away."""
        self._file.revoke(principal.key_id)

    def _by_token(self, token: str, records: list[KeyRecord]) -> KeyRecord:
        try:
            claims = tokens.verify(self._secret, token)
        except tokens.BadToken as error:
            raise InvalidToken(str(error)) from error
        for record in records:
            if record.id == claims.get("key_id") and record.revoked_at is None:
                return record
        raise InvalidToken("the key behind the token was revoked")

    def _current(self) -> list[KeyRecord]:
        try:
            if self._file.stamp() != self._stamp:
                with self._lock:
                    self._reload()
        except ConfigError as error:
            _log.error("the key file cannot be used, so every request is refused: %s", error)
            raise Unavailable("the server cannot check keys at present; its log says why") from error
        return self._records

    def _reload(self) -> None:
        stamp = self._file.stamp()
        self._records = self._file.read()
        self._stamp = stamp


def _credential(headers: Mapping[str, str]) -> str:
    key = headers.get("x-api-key", "").strip()
    if key:
        return key
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and bearer.strip():
        return bearer.strip()
    raise MissingKey("send an API key in the header X-API-Key (or Authorization: Bearer)")


def _principal(record: KeyRecord) -> Principal:
    return Principal(
        owner=record.owner,
        name=record.name,
        note=record.note,
        email=record.email,
        organization=record.organization,
        key_id=record.id,
    )


def open_authenticator(path: Path) -> KeyAuthenticator:
    """The authenticator of a key file. Raises ConfigError when the file is missing, broken or open to others."""
    return KeyAuthenticator(path)
