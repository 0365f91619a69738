"""Keys in ``~/.tinker/credentials.json`` (folder 0700, file 0600)."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ._errors import TinkerError


class OrgDetails(BaseModel):
    name: str | None = None


class UserDetails(BaseModel):
    email: str | None = None


class KeyDetails(BaseModel):
    org_details: OrgDetails = OrgDetails()
    user_details: UserDetails = UserDetails()


class StoredKey(BaseModel):
    model_config = ConfigDict(extra="allow")

    type: Literal["manual", "generated"] = "manual"
    key: str
    name: str
    note: str | None = None
    details: KeyDetails | None = None


class CredentialsFile(BaseModel):
    model_config = ConfigDict(extra="allow")

    version: Literal[1] = 1
    default: str | None = None
    keys: dict[str, StoredKey] = {}


def credentials_path() -> Path:
    return Path.home() / ".tinker" / "credentials.json"


def read_credentials() -> CredentialsFile:
    """The stored keys; an empty set if there is no file. Raises TinkerError for an unreadable one."""
    path = credentials_path()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return CredentialsFile()
    except OSError as error:
        raise TinkerError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return CredentialsFile.model_validate_json(text)
    except ValidationError as error:
        raise TinkerError(f"{path} is not a valid credentials file; repair or remove it: {error}") from error


def write_credentials(credentials: CredentialsFile) -> None:
    """Replace the file in one step, readable by its owner alone."""
    path = credentials_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(path.parent, 0o700)
    text = json.dumps(credentials.model_dump(exclude_none=True), indent=2) + "\n"
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def default_key() -> str | None:
    """The key that the file names as default."""
    credentials = read_credentials()
    stored = credentials.keys.get(credentials.default) if credentials.default else None
    return stored.key if stored else None
