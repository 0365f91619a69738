"""``tinker-backend keys``."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ..errors import ConfigError
from .key_file import KeyFile

_FILE = click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="TINKER_BACKEND_KEYS_FILE",
    help="The key file that backend.api_keys_file of runtime.yaml names.",
)


def _plain_errors(function: Callable[..., None]) -> Callable[..., None]:
    @wraps(function)
    def wrapped(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except ConfigError as error:
            raise click.ClickException(str(error)) from error

    return wrapped


@click.group("keys")
def keys() -> None:
    """Make, list and revoke API keys. A running server sees every change at once."""


@keys.command("create")
@_FILE
@click.option("--name", required=True, help="Who or what will use the key.")
@click.option("--owner", default=None, help="Owner to share with an earlier key; a new owner by default.")
@click.option("--note", default="", help="A remark.")
@click.option("--email", default="", help="Shown by whoami.")
@click.option("--organization", default="local", show_default=True, help="Shown by whoami.")
@_plain_errors
def create(path: Path, name: str, owner: str | None, note: str, email: str, organization: str) -> None:
    """Make a key and print it: this is the only time that it can be read."""
    key, record = KeyFile(path).create(name, owner, note, email, organization)
    click.echo(key)
    click.echo(f"key {record.id} ({record.name}), owner {record.owner}; keep it, only its hash is stored", err=True)


@keys.command("list")
@_FILE
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@_plain_errors
def list_keys(path: Path, as_json: bool) -> None:
    """List the keys, without the keys themselves."""
    records = KeyFile(path).read()
    if as_json:
        shown = [{name: value for name, value in asdict(record).items() if name != "digest"} for record in records]
        click.echo(json.dumps(shown, indent=2))
        return
    table = Table("id", "name", "owner", "created", "state", "note")
    for record in records:
        state = f"revoked {record.revoked_at}" if record.revoked_at else "in use"
        table.add_row(str(record.id), record.name, record.owner, record.created_at, state, record.note)
    Console().print(table)


@keys.command("revoke")
@_FILE
@click.argument("name_or_id")
@_plain_errors
def revoke(path: Path, name_or_id: str) -> None:
    """Take a key away, by name or number."""
    record = KeyFile(path).revoke(name_or_id)
    click.echo(f"key {record.id} ({record.name}) is revoked")
