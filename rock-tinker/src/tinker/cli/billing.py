"""tinker billing"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from .. import types
from .output import print_json, print_table, size, wants_json
from .server import admin_client


@click.group("billing")
def group() -> None:
    """Usage and storage figures."""


@group.command()
@click.argument("start")
@click.argument("end")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write the events to this file ('-': stdout).")
@click.option("--sessions-csv", type=click.Path(path_type=Path), help="Write the labels of sessions to this file.")
def usage(start: str, end: str, csv_file: Path | None, sessions_csv: Path | None) -> None:
    """Usage by hour from START to before END (RFC 3339, full hours)."""
    answer = admin_client().get_billing_usage(start, end).result()
    if csv_file is not None:
        _write_csv(csv_file, (_flat(event) for event in answer.data))
    if sessions_csv is not None:
        _write_csv(
            sessions_csv,
            ({"session_id": key, **(value.user_metadata or {})} for key, value in answer.sessions.items()),
        )
    if csv_file is not None or sessions_csv is not None:
        return
    if wants_json():
        print_json(answer)
        return
    rows = [
        (
            f"{event.bucket_start:%Y-%m-%d %H:%M}",
            event.event_info.type,
            event.base_model or "-",
            event.session_id or "-",
            _amount(event.event_info),
            "-" if event.estimated_cost_usd is None else f"${event.estimated_cost_usd:.4f}",
        )
        for event in answer.data
    ]
    print_table(("Hour", "Event", "Base Model", "Session", "Amount", "Cost"), rows)


def _flat(event: types.BillingUsageEvent) -> dict[str, Any]:
    fields = event.model_dump()
    details = fields.pop("event_info")
    return {**fields, "event_type": details.pop("type"), **details}


def _amount(details: types.BillingEventInfo) -> str:
    if isinstance(details, types.StorageBillingEvent):
        return f"{details.gigabyte_hours:g} GB h"
    if isinstance(details, types.CheckpointBillingEvent):
        return str(details.count)
    return f"{details.token_count} tokens"


@group.command("checkpoint-storage")
@click.option("--project-id", help="Only of one project.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write to this file ('-': stdout).")
def checkpoint_storage(project_id: str | None, csv_file: Path | None) -> None:
    """Storage that checkpoints take now."""
    answer = admin_client().get_current_checkpoint_storage_usage(project_id).result()
    if csv_file is not None:
        _write_csv(csv_file, (item.model_dump() for item in answer.data))
    elif wants_json():
        print_json(answer)
    else:
        rows = [
            (
                item.project_id or "-",
                item.user_name or item.user_email or item.org_user_urn or "-",
                str(item.checkpoint_count),
                size(item.size_bytes),
                "-" if item.estimated_monthly_cost_usd is None else f"${item.estimated_monthly_cost_usd:.2f}",
            )
            for item in answer.data
        ]
        print_table(("Project", "User", "Checkpoints", "Size", "Cost a Month"), rows)


def _write_csv(target: Path, rows: Iterable[dict[str, Any]]) -> None:
    listed = list(rows)
    columns = list(dict.fromkeys(key for row in listed for key in row))
    if str(target) == "-":
        _write_rows(sys.stdout, columns, listed)
        return
    with target.open("w", newline="", encoding="utf-8") as file:
        _write_rows(file, columns, listed)


def _write_rows(file: Any, columns: list[str], rows: list[dict[str, Any]]) -> None:
    writer = csv.DictWriter(file, columns)
    writer.writeheader()
    writer.writerows(rows)
