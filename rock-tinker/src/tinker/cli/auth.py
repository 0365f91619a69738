"""tinker auth"""

from __future__ import annotations

from typing import Any

import click
import httpx

from .. import auth as credentials_check
from .._credentials import CredentialsFile, KeyDetails, StoredKey, read_credentials, write_credentials
from .._errors import TinkerError
from .._settings import resolve_base_url
from .output import CliError, print_json, print_table, wants_json
from .server import rest_client

_TIMEOUT_SECONDS = 30.0


@click.group("auth")
def group() -> None:
    """Log in, log out, see who you are."""


@group.command()
@click.option("--name", help="Name of the stored key (default: what the server says, else 'default').")
def login(name: str | None) -> None:
    """Check a key with the server and keep it in ~/.tinker/credentials.json."""
    key = click.prompt("API key", hide_input=True).strip()
    if not key.startswith("tml-"):
        raise CliError("The key must start with 'tml-'", "Copy it whole from the page or command that made it.")
    known = _key_info(key)
    stored = StoredKey(
        type="manual",
        key=key,
        name=name or str(known.get("name") or "default"),
        note=known.get("note"),
        details=KeyDetails.model_validate(known["details"]) if known.get("details") else None,
    )
    credentials = read_credentials()
    key_id = str(known.get("key_id") or stored.name)
    write_credentials(CredentialsFile(default=key_id, keys={**credentials.keys, key_id: stored}))
    click.echo(f"Logged in; the key {stored.name!r} is now the default.")


def _key_info(key: str) -> dict[str, Any]:
    """What the server knows about a key; raises CliError if it refuses it."""
    url = f"{resolve_base_url()}/api/v1/auth/apikey/me"
    try:
        response = httpx.get(url, headers={"X-API-Key": key}, timeout=_TIMEOUT_SECONDS)
    except httpx.HTTPError as error:
        raise CliError(f"The server {resolve_base_url()} cannot be reached", str(error)) from error
    if response.status_code in (401, 403):
        raise CliError("The server refused the key", "Check that you copied it whole.")
    if response.status_code == 404:
        return {}  # a server that does not keep names of keys
    if response.status_code >= 400:
        raise CliError(f"The server answered {response.status_code}", response.text[:500])
    info = response.json()
    return info if isinstance(info, dict) else {}


@group.command()
def logout() -> None:
    """Remove the default key from this machine; a key that was generated for it is revoked too."""
    credentials = read_credentials()
    stored = credentials.keys.get(credentials.default or "")
    if credentials.default is None or stored is None:
        raise CliError(
            "This machine keeps no default key", "So there is none to remove; `tinker auth login` would store one."
        )
    if stored.type == "generated":
        _revoke(stored.key)
    keys = {key_id: key for key_id, key in credentials.keys.items() if key_id != credentials.default}
    write_credentials(CredentialsFile(default=None, keys=keys))
    click.echo(f"Key {stored.name!r} is no longer on this machine.")


def _revoke(key: str) -> None:
    url = f"{resolve_base_url()}/api/v1/auth/apikey/me"
    try:
        response = httpx.delete(url, headers={"X-API-Key": key}, timeout=_TIMEOUT_SECONDS)
    except httpx.HTTPError as error:
        raise CliError("The server cannot be reached to revoke the key", str(error)) from error
    if response.status_code >= 400 and response.status_code not in (401, 404):
        raise CliError(f"The server did not revoke the key ({response.status_code})", response.text[:500])


@group.command()
def status() -> None:
    """Whether there is a credential and the server takes it."""
    available = credentials_check.tinker_has_credentials()
    click.echo(f"Credentials available: {'yes' if available else 'no'}")
    try:
        credentials_check.raise_if_tinker_not_accessible()
    except TinkerError as error:
        click.echo("Tinker accessible: no")
        click.echo(str(error), err=True)
    else:
        click.echo("Tinker accessible: yes")


@group.command()
def whoami() -> None:
    """Who the credential belongs to."""
    try:
        answer = rest_client().whoami().result()
    except RuntimeError as error:  # the server knows no names
        raise CliError(str(error)) from error
    if wants_json():
        print_json(answer)
    else:
        rows = [("User", answer.user_urn), ("Organization", answer.org_urn), ("Email", answer.email or "-")]
        print_table(("Property", "Value"), rows)
