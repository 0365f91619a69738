"""The file of API keys: one record a key, the key itself only as its SHA-256.

A key holds 256 random bits, so its plain hash cannot be searched; a slow hash would add nothing but delay to every
request. The file must belong to the user alone (mode 0600) and is replaced as a whole, never written in place.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import ConfigError

PREFIX = "tml-"
"""What every key starts with; clients check it before they send anything."""

_FORMAT = 1
_MAX_NAME = 128


@dataclass(frozen=True)
class KeyRecord:
    """A key as it is kept. ``owner`` is what the key's sessions, runs and checkpoints belong to; keys that are made
    with the same owner see the same things, so that a key can be replaced."""

    id: int
    name: str
    owner: str
    digest: str = field(repr=False)
    """SHA-256 of the key, hexadecimal."""
    created_at: str
    note: str = ""
    email: str = ""
    organization: str = "local"
    revoked_at: str | None = None


def digest(key: str) -> str:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class KeyFile:
    """A key file. Reading and writing raise ConfigError with the path and the fix."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stamp(self) -> tuple[int, int, int]:
        """Changes whenever the file does (inode, size, time of change). Raises ConfigError when it is not there."""
        status = self._status()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def read(self) -> list[KeyRecord]:
        """All records, revoked ones too. Refuses a file that others can read or write."""
        status = self._status()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{self.path} is no regular file; make a key file with `tinker-backend keys create`")
        if status.st_mode & 0o077:
            raise ConfigError(
                f"{self.path} has mode {stat.S_IMODE(status.st_mode):04o}, so that others can reach it: chmod 600 it"
            )
        if status.st_uid not in (os.geteuid(), 0):
            raise ConfigError(f"{self.path} belongs to user {status.st_uid}, not to the user of this server: chown it")
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            if document["format"] != _FORMAT:
                raise ConfigError(f"{self.path} has format {document['format']!r}; this version reads {_FORMAT}")
            return [_record(entry) for entry in document["keys"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.path} is no key file ({type(error).__name__}: {error})") from error

    def create(
        self, name: str, owner: str | None = None, note: str = "", email: str = "", organization: str = "local"
    ) -> tuple[str, KeyRecord]:
        """Adds a key, and the file when there is none. The key is returned here and never again.

        Raises ConfigError for a name that is empty, too long, or taken by a key that is not revoked.
        """
        for what, text in (("name", name), ("owner", owner or name), ("note", note), ("email", email)):
            if len(text) > _MAX_NAME or any(not letter.isprintable() for letter in text):
                raise ConfigError(f"{what} {text!r} must be at most {_MAX_NAME} printable characters")
        if not name.strip():
            raise ConfigError("a key needs a name: say who or what will use it")
        key = PREFIX + secrets.token_urlsafe(32)
        with self._exclusive():
            records = self.read() if self.path.exists() else []
            if any(record.name == name and record.revoked_at is None for record in records):
                raise ConfigError(f"a key named {name!r} exists already: revoke it first or choose another name")
            number = max((record.id for record in records), default=0) + 1
            record = KeyRecord(
                id=number,
                name=name,
                owner=owner or f"key-{number}",
                digest=digest(key),
                created_at=_now(),
                note=note,
                email=email,
                organization=organization,
            )
            self._write([*records, record])
        return key, record

    def revoke(self, name_or_id: str | int) -> KeyRecord:
        """Takes a key away, by name or number. Its record stays, so that no later key gets its number.

        Raises ConfigError when there is no such key in use.
        """
        with self._exclusive():
            records = self.read()
            for position, record in enumerate(records):
                if record.revoked_at is None and name_or_id in (record.name, record.id, str(record.id)):
                    records[position] = replace(record, revoked_at=_now())
                    self._write(records)
                    return records[position]
        raise ConfigError(f"{self.path} holds no key in use that is called {name_or_id!r}")

    def _status(self) -> os.stat_result:
        try:
            return self.path.stat()
        except OSError as error:
            raise ConfigError(
                f"cannot read the key file {self.path} ({error.strerror}); make one with "
                f"`tinker-backend keys create --file {self.path} --name NAME`"
            ) from error

    def _write(self, records: list[KeyRecord]) -> None:
        document = {"format": _FORMAT, "keys": [asdict(record) for record in records]}
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(6)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(document, stream, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One writer at a time, across processes."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot write beside {self.path}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def find(records: list[KeyRecord], key: str) -> KeyRecord | None:
    """The record in use of ``key``. Every record is compared, and each comparison takes the same time."""
    wanted = digest(key)
    found: KeyRecord | None = None
    for record in records:
        if hmac.compare_digest(record.digest, wanted) and record.revoked_at is None:
            found = record
    return found


def _record(entry: dict[str, Any]) -> KeyRecord:
    known = {member.name for member in fields(KeyRecord)}
    if unknown := set(entry) - known:
        raise ValueError(f"unknown fields {sorted(unknown)}")
    record = KeyRecord(**entry)
    if len(bytes.fromhex(record.digest)) != 32 or not isinstance(record.id, int) or not record.owner:
        raise ValueError(f"key {entry.get('name')!r} has no usable id, owner or digest")
    return record


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
