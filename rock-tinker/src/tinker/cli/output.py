"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
from pydantic import BaseModel

_UNBOUNDED = 100_000


class CliError(Exception):
    """Ends the program with exit code 1; ``details`` says what to do."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


def wants_json() -> bool:
    """Whether the user asked for JSON."""
    return bool(click.get_current_context().find_root().params.get("output_format") == "json")


def print_json(value: Any) -> None:
    """Indented by 2; datetimes as Python writes them."""
    click.echo(json.dumps(_plain(value), indent=2, default=str))


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {key: _plain(item) for key, item in value.model_dump().items()}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """A table; a path is never cut. Where the terminal is too narrow for it, each row becomes lines of its own."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(title=None if title is None else Text(title))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a run id may look like markup, e.g. ":train:"
    console = Console()
    wanted = Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table).maximum
    if len(columns) > 2 and wanted > console.width:
        _print_rows(columns, rows, title)
    else:
        console.print(table)


def _print_rows(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None) -> None:
    if title is not None:
        click.echo(title)
    width = max(len(column) for column in columns)
    for row in rows:
        click.echo()
        for column, cell in zip(columns, row, strict=True):
            click.echo(f"{column:{width}}  {cell}")


def yes_no(value: bool | None) -> str:
    return "-" if value is None else "Yes" if value else "No"


def moment(value: datetime | None) -> str:
    """How long ago, for the last days; else the date."""
    if value is None:
        return "N/A"
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    seconds = (datetime.now(UTC) - value).total_seconds()
    if seconds < 0:
        return value.strftime("%Y-%m-%d %H:%M")
    for limit, unit, name in ((60, 1, "second"), (3600, 60, "minute"), (86400, 3600, "hour"), (604800, 86400, "day")):
        if seconds < limit:
            count = int(seconds // unit)
            return f"{count} {name}{'' if count == 1 else 's'} ago"
    return value.strftime("%Y-%m-%d")


def size(value: int | None) -> str:
    """Bytes in the unit that fits."""
    if value is None:
        return "N/A"
    amount = float(value)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"


def lora(is_lora: bool, rank: int | None) -> str:
    """Short form for lists."""
    return "No" if not is_lora else "Yes" if rank is None else f"Rank {rank}"


def lora_long(is_lora: bool, rank: int | None) -> str:
    """Long form for property tables."""
    return "No" if not is_lora else "Yes" if rank is None else f"Yes (Rank {rank})"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
